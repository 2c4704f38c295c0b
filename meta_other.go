//go:build !(darwin || dragonfly || freebsd || illumos || linux || netbsd || openbsd)

package slotmesh

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
)

const lockName = "held"

// lockFolder makes a file that nobody else can make, and unlock removes it. After
// a crash it is still there, and has to be removed by hand: two nodes on one
// folder would be worse.
func lockFolder(root *os.Root) (unlock func() error, err error) {
	file, err := root.OpenFile(lockName, os.O_WRONLY|os.O_CREATE|os.O_EXCL, metaFilePerm)
	switch {
	case errors.Is(err, fs.ErrExist):
		return nil, fmt.Errorf("%w; if none runs, the last one crashed: remove file %s", errInUse, lockName)
	case err != nil:
		return nil, err
	}
	return func() error { return errors.Join(file.Close(), root.Remove(lockName)) }, nil
}

// syncFolder does nothing: these systems have no sync for folders. A file that
// was written anew may be the old one after a loss of power.
func syncFolder(*os.File) error { return nil }

// openToAll is false: permissions are not in the mode here.
func openToAll(fs.FileMode) bool { return false }
