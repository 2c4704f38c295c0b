//go:build darwin || dragonfly || freebsd || illumos || linux || netbsd || openbsd

package slotmesh

import (
	"errors"
	"io/fs"
	"os"
	"syscall"
)

const metaLock = "lock"

// lockMetaFolder locks a file in the folder with flock, which the kernel undoes when
// the process ends, however it ends. The file stays: were it removed, two could
// hold locks on two files of that name.
func lockMetaFolder(root *os.Root) (unlock func() error, err error) {
	file, err := root.OpenFile(metaLock, os.O_RDWR|os.O_CREATE, metaFilePerm)
	if err != nil {
		return nil, err
	}
	for {
		err = syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err != syscall.EINTR {
			break
		}
	}
	if err == nil {
		return file.Close, nil
	}
	file.Close()
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return nil, errFolderInUse
	}
	return nil, &fs.PathError{Op: "flock", Path: metaLock, Err: err}
}

// syncMetaFolder syncs names. Some file systems, of the network mostly, know no sync
// of folders: there a name is safe at once, or there is no help.
func syncMetaFolder(folder *os.File) error {
	err := folder.Sync()
	if errors.Is(err, syscall.EINVAL) || errors.Is(err, syscall.ENOTSUP) {
		return nil
	}
	return err
}

func metaOpenToAll(folder fs.FileMode) bool { return folder.Perm()&0o002 != 0 }
