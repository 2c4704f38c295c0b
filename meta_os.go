package slotmesh

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// metaFS is what meta needs of a file system: files that are lost or torn unless
// they are synced, and names that are lost unless their folder is synced. Tests
// have one that crashes.
type metaFS interface {
	// open opens a folder, and makes it and those above it if missing, for the
	// owner only.
	open(path string) (metaDir, error)
}

// metaDir is an open folder. It stays the same if it is renamed.
type metaDir interface {
	mode() (fs.FileMode, error)
	// lock keeps every other metaDir of the folder out until close, also those
	// of this process; it fails with errFolderInUse where it is kept out.
	lock() error
	// read returns a whole file; it fails if that has more bytes than most, or
	// is no plain file.
	read(name string, most int64) ([]byte, error)
	exists(name string) (bool, error)
	// create makes a file, and fails if there is anything of that name.
	create(name string) (metaFile, error)
	rename(from, to string) error
	remove(name string) error
	sync() error        // names in the folder
	syncParents() error // names of the folder and of those above it
	close() error
}

type metaFile interface {
	io.WriterAt
	Sync() error
	io.Closer
}

var errFolderInUse = errors.New("in use by another node")

const (
	metaFolderPerm = 0o700
	metaFilePerm   = 0o600
)

// osFS is the file system of the machine.
type osFS struct{}

func (osFS) open(path string) (metaDir, error) {
	// Were the working directory to change, path would be another one.
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(path, metaFolderPerm); err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(path)
	if err != nil {
		return nil, err
	}
	self, err := root.Open(".")
	if err != nil {
		root.Close()
		return nil, err
	}
	return &osDir{path: path, root: root, self: self}, nil
}

// osDir names files by constants only, and a Root does not follow links out of
// the folder.
type osDir struct {
	path   string // absolute
	root   *os.Root
	self   *os.File
	unlock func() error // nil if not locked
}

func (d *osDir) mode() (fs.FileMode, error) {
	info, err := d.self.Stat()
	if err != nil {
		return 0, err
	}
	return info.Mode(), nil
}

func (d *osDir) lock() (err error) {
	d.unlock, err = lockMetaFolder(d.root)
	return err
}

func (d *osDir) read(name string, most int64) ([]byte, error) {
	info, err := d.root.Lstat(name)
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%s is no plain file but %v", name, info.Mode())
	case info.Size() > most:
		return nil, fmt.Errorf("%s has %d bytes, at most %d are allowed", name, info.Size(), most)
	}
	file, err := d.root.Open(name)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	b := make([]byte, info.Size()) // the lock keeps it as long as it is
	_, err = io.ReadFull(file, b)
	return b, err
}

func (d *osDir) exists(name string) (bool, error) {
	_, err := d.root.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

func (d *osDir) create(name string) (metaFile, error) {
	file, err := d.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, metaFilePerm)
	if err != nil {
		return nil, err // not a metaFile that holds a nil
	}
	return file, nil
}

func (d *osDir) rename(from, to string) error { return d.root.Rename(from, to) }
func (d *osDir) remove(name string) error     { return d.root.Remove(name) }
func (d *osDir) sync() error                  { return syncMetaFolder(d.self) }

// syncParents goes all the way up: who made the folders may have died before it
// synced them. A folder that may not be opened was made by somebody else.
func (d *osDir) syncParents() error {
	for path := d.path; path != filepath.Dir(path); {
		path = filepath.Dir(path)
		parent, err := os.Open(path)
		if errors.Is(err, fs.ErrPermission) {
			continue
		}
		if err != nil {
			return err
		}
		err = syncMetaFolder(parent)
		parent.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

func (d *osDir) close() error {
	var err error
	if d.unlock != nil {
		err = d.unlock()
	}
	return errors.Join(err, d.self.Close(), d.root.Close())
}
