// This file is empty on purpose. Where a package has assembly, the compiler
// accepts functions without a body, which the tests bind by go:linkname.
