package slotmesh

import (
	"bytes"
	"io/fs"
	"slices"
	"testing"
)

// fuzzMetaDir is a folder with one file, which takes every write and keeps none.
type fuzzMetaDir struct{ file []byte }

func (f *fuzzMetaDir) open(string) (metaDir, error) { return f, nil }

func (f *fuzzMetaDir) mode() (fs.FileMode, error)         { return fs.ModeDir | 0o700, nil }
func (f *fuzzMetaDir) lock() error                        { return nil }
func (f *fuzzMetaDir) read(string, int64) ([]byte, error) { return bytes.Clone(f.file), nil }
func (f *fuzzMetaDir) exists(string) (bool, error)        { return true, nil }
func (f *fuzzMetaDir) create(string) (metaFile, error)    { return fuzzMetaFile{}, nil }
func (f *fuzzMetaDir) rename(string, string) error        { return nil }
func (f *fuzzMetaDir) remove(string) error                { return nil }
func (f *fuzzMetaDir) sync() error                        { return nil }
func (f *fuzzMetaDir) syncParents() error                 { return nil }
func (f *fuzzMetaDir) close() error                       { return nil }

type fuzzMetaFile struct{}

func (fuzzMetaFile) WriteAt(b []byte, _ int64) (int, error) { return len(b), nil }
func (fuzzMetaFile) Sync() error                            { return nil }
func (fuzzMetaFile) Close() error                           { return nil }

// Whatever is in the file: no panic, memory within its bound, and what is read is
// read again from what the start has written.
func FuzzOpenMeta(f *testing.F) {
	b, starts, _ := damagedMeta()
	f.Add([]byte(nil), false)
	f.Add(b, false)
	f.Add(b[:starts[2]+9], false)
	f.Add(slices.Concat(b, make([]byte, 600)), false)
	f.Add(slices.Concat(b, b), false)
	f.Add(metaBytes(manyMetaCells(2000)), false)
	f.Add(metaBytes(bareMetaCells(10_000)), false)
	f.Add(metaBytes(bareMetaCells(2000), bareMetaCells(9000), bareMetaCells(5)), false)
	f.Add(rawMetaFrame(bytes.Repeat([]byte{0xff}, 1000)), false)
	f.Add(bytes.Repeat(b[metaPreamble:metaPreamble+metaHeader], 2000), true)
	f.Add(b[metaPreamble+metaHeader:starts[1]], true)
	f.Fuzz(func(t *testing.T, file []byte, framed bool) {
		if framed { // a fuzzer does not find a sum
			file = rawMetaFrame(file)
		}
		was := bytes.Clone(file)
		most := 4*uint64(len(file)) + 64<<10
		var cells []cell
		var err error
		if n := allocated(most, func() { _, cells, err = openMeta(&fuzzMetaDir{file}, "folder") }); n > most {
			t.Errorf("%d bytes allocated for %d, want at most %d", n, len(file), most)
		}
		if !bytes.Equal(file, was) {
			t.Fatal("the file was changed")
		}
		if err != nil {
			return
		}
		again, cut, err := parseMeta(metaBytes(cells))
		if err != nil || cut != 0 || !slices.EqualFunc(again, cells, sameCell) {
			t.Fatalf("read %s, wrote it, and read %s, error %v", cellsText(cells), cellsText(again), err)
		}
	})
}

// bareMetaCells have no values: nothing takes more memory for its bytes.
func bareMetaCells(n int) []cell {
	cells := manyMetaCells(n)
	for i := range cells {
		cells[i].value = []byte{}
	}
	return cells
}

func sameCell(a, b cell) bool { return a.key == b.key && bytes.Equal(a.value, b.value) }
