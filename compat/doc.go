// Package compat holds the tests that put slotmesh beside other people's
// libraries. It is a module of its own, so that none of them is a dependency
// of slotmesh. It exports nothing.
package compat
