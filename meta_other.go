//go:build !(darwin || dragonfly || freebsd || illumos || linux || netbsd || openbsd)

package slotmesh

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
)

const metaLock = "held"

// lockMetaFolder makes a file that nobody else can make, and unlock removes it.
// After a crash it is still there, and has to be removed by hand: two nodes on
// one folder would be worse.
func lockMetaFolder(root *os.Root) (unlock func() error, err error) {
	file, err := root.OpenFile(metaLock, os.O_WRONLY|os.O_CREATE|os.O_EXCL, metaFilePerm)
	switch {
	case errors.Is(err, fs.ErrExist):
		return nil, fmt.Errorf("%w; if none runs, the last one crashed: remove file %s", errFolderInUse, metaLock)
	case err != nil:
		return nil, err
	}
	return func() error { return errors.Join(file.Close(), root.Remove(metaLock)) }, nil
}

// syncMetaFolder does nothing: these systems have no sync for folders. A file that
// was written anew may be the old one after a loss of power.
func syncMetaFolder(*os.File) error { return nil }

// metaOpenToAll is false: permissions are not in the mode here.
func metaOpenToAll(fs.FileMode) bool { return false }
