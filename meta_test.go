package slotmesh

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// ---- damage

// metaBytes is a file of cells in frame 0 and of saves behind it, sealed.
func metaBytes(frames ...[]cell) []byte {
	const stamp = 0x0123456789abcdef
	var b bytes.Buffer
	b.Write(appendMetaPreamble(nil))
	for i, cells := range frames {
		writeMetaFrame(&b, stamp, uint64(i), cells)
	}
	if len(frames) > 1 {
		writeMetaFrame(&b, stamp, uint64(len(frames)), nil)
	}
	return b.Bytes()
}

// damagedMeta is a file of four frames, where each of them begins, and the state
// up to each.
func damagedMeta() (b []byte, starts []int, states []string) {
	frames := [][]cell{
		{testCell(1, 0, "node"), testCell(2, 0, "me"), testCell(14, 0, "1")},
		{testCell(6, 3, "promise 1"), deletedCell(14, 0)},
		{testCell(6, 3, "promise 2"), testCell(14, 0, "2")},
		{testCell(6, 3, "promise 3")},
	}
	for i := range frames {
		if i == 0 {
			starts = append(starts, metaPreamble)
		} else {
			starts = append(starts, starts[i-1]+metaHeader+cellsLen(frames[i-1]))
		}
	}
	return metaBytes(frames...), starts, crashStates(frames)[1:]
}

const metaSealLen = metaHeader // bytes of a seal

func TestNoFlippedBitTakesAnAcknowledgedSave(t *testing.T) {
	b, _, states := damagedMeta()
	for i := range 8 * len(b) {
		b[i/8] ^= 1 << (i % 8)
		cells, cut, err := parseMeta(b)
		switch inSeal := i/8 >= len(b)-metaSealLen; {
		case !inSeal && err == nil:
			t.Errorf("bit %d of byte %d flipped: no error", i%8, i/8)
		case inSeal && err != nil:
			t.Errorf("bit %d of byte %d flipped, in the seal: %v", i%8, i/8, err)
		case inSeal && (cellsText(cells) != states[3] || cut != metaSealLen):
			t.Errorf("bit %d of byte %d flipped, in the seal: found %s and %d bytes to cut", i%8, i/8, cellsText(cells), cut)
		}
		b[i/8] ^= 1 << (i % 8)
	}
}

func TestMetaSealsEverySave(t *testing.T) {
	d := newCrashDisk()
	m, _, err := openMeta(d, "folder")
	require.NoError(t, err)
	for i := range 5 {
		end := m.end
		require.NoError(t, m.save([]cell{testCell(1, 0, strconv.Itoa(i))}))
		f := d.names()[metaName]
		b := f.content(len(f.writes))
		_, cut, err := parseMeta(b)
		require.NoError(t, err)
		require.Zero(t, cut)
		b[max(int(end), metaPreamble)] ^= 1
		_, _, err = parseMeta(b)
		require.Error(t, err, "save %d", i)
	}
}

func TestMetaCellsShareNoMemoryWithTheFile(t *testing.T) {
	b, _, states := damagedMeta()
	cells, _, err := parseMeta(b)
	require.NoError(t, err)
	clear(b)
	require.Equal(t, states[3], cellsText(cells))
}

// Without a seal, the last save looks like one that was cut off.
func TestAFlippedBitIsFoundInAllButTheLastSaveWithoutSeal(t *testing.T) {
	b, starts, states := damagedMeta()
	b = b[:len(b)-metaSealLen]
	for i := range 8 * len(b) {
		b[i/8] ^= 1 << (i % 8)
		cells, _, err := parseMeta(b)
		switch inLast := i/8 >= starts[3]; {
		case !inLast && err == nil:
			t.Errorf("bit %d of byte %d flipped: no error", i%8, i/8)
		case inLast && (err != nil || cellsText(cells) != states[2]):
			t.Errorf("bit %d of byte %d flipped, in the last save: found %s, error %v", i%8, i/8, cellsText(cells), err)
		}
		b[i/8] ^= 1 << (i % 8)
	}
}

func TestATruncatedFileGivesWholeSavesOrAnError(t *testing.T) {
	b, starts, states := damagedMeta()
	ends := append(slices.Clone(starts[1:]), len(b)-metaSealLen)
	for n := range b {
		cells, cut, err := parseMeta(b[:n])
		if n < ends[0] {
			if err == nil {
				t.Errorf("the first %d bytes: no error", n)
			}
			continue
		}
		i, _ := slices.BinarySearch(ends, n+1) // whole frames
		if err != nil || cellsText(cells) != states[i-1] || cut != n-ends[i-1] {
			t.Errorf("the first %d bytes: found %s and %d bytes to cut, error %v; want %s and %d",
				n, cellsText(cells), cut, err, states[i-1], n-ends[i-1])
		}
	}
}

func TestWhatIsBehindTheLastSaveIsCut(t *testing.T) {
	b, _, states := damagedMeta()
	for _, test := range []struct {
		name string
		tail []byte
	}{
		{"nothing", nil},
		{"one zero", make([]byte, 1)},
		{"600 zeros", make([]byte, 600)},
		{"ones", bytes.Repeat([]byte{0xff}, 100)},
		{"frames of another file", oldMetaBlocks()},
		{"a stamp without a frame", append(make([]byte, 9), b[metaPreamble:metaPreamble+20]...)},
		{"half a frame", b[len(b)-metaSealLen : len(b)-1]},
	} {
		cells, cut, err := parseMeta(slices.Concat(b, test.tail))
		if err != nil || cellsText(cells) != states[3] || cut != len(test.tail) {
			t.Errorf("%s: found %s and %d bytes to cut, error %v; want %d bytes", test.name, cellsText(cells), cut, err, len(test.tail))
		}
	}
}

func TestDamageBeforeTheEndIsAnError(t *testing.T) {
	b, starts, _ := damagedMeta()
	frame := func(i int) []byte { return b[starts[i]:starts[i+1]] }
	zeroed := func(from, to int) []byte {
		z := slices.Clone(b)
		clear(z[from:to])
		return z
	}
	format := func(n uint32) []byte {
		p := binary.BigEndian.AppendUint32([]byte(metaMagic), n)
		return append(appendMetaSum(p, p), b[metaPreamble:]...)
	}
	for _, test := range []struct {
		name string
		b    []byte
		want string
	}{
		{"empty", nil, "is empty: the node does not start"},
		{"short", b[:10], "damaged at byte 0: 10 bytes, expected a preamble of 16"},
		{"another program's", []byte("#!/bin/sh\necho hello\n"), `is not the file of a node: it begins with "#!/bin/s", expected "slotmesh"`},
		{"preamble only", b[:metaPreamble], "damaged at byte 16: the file ends, expected all cells"},
		{"newer format", format(2), "has format 2, written by a newer version; this one reads format 1"},
		{"format 0", format(0), "has format 0, expected 1"},
		{"zeros", make([]byte, len(b)), "is not the file of a node"},
		{"all cells zeroed", zeroed(starts[0], starts[1]), "damaged at byte 16: the first frame"},
		{"a save zeroed", zeroed(starts[1], starts[2]), fmt.Sprintf("damaged at byte %d: frame 1 does not match its sums, and others follow", starts[1])},
		{"the last save zeroed", zeroed(starts[3], len(b)-metaSealLen), fmt.Sprintf("damaged at byte %d: frame 3 does not match", starts[3])},
		{"a save missing", slices.Concat(b[:starts[1]], b[starts[2]:]), "frame 2, expected 1"},
		{"a save twice", slices.Concat(b[:starts[2]], frame(1), b[starts[2]:]), "frame 1, expected 2"},
		{"saves exchanged", slices.Concat(b[:starts[1]], frame(2), frame(1), b[starts[3]:]), "frame 2, expected 1"},
		{"bytes put in", slices.Concat(b[:starts[2]], make([]byte, 100), b[starts[2]:]), "frame 2 does not match its sums, and others follow"},
		{"a cell twice", metaBytes([]cell{testCell(1, 0, "a"), testCell(1, 0, "b")}), "frame 0: cell 1/0/0000000000000000000000000000000000000000 twice"},
		{"cells out of order", metaBytes([]cell{testCell(1, 0, "a")}, []cell{testCell(2, 1, "b"), testCell(2, 0, "c")}), "frame 1: cell 2/0/0000000000000000000000000000000000000000 out of order"},
		{"a deletion among all cells", metaBytes([]cell{deletedCell(1, 3)}), "frame 0: cell 1/3/0000000000000000000000000000000000000003 without a value"},
		{"half a cell", rawMetaFrame(make([]byte, 25)), "frame 0, cell 0: 25 bytes left, expected 26"},
		{"a value too long", rawMetaFrame(append(make([]byte, 22), 0xff, 0xff, 0xff, 0xfe)), "frame 0, cell 0: 26 bytes left, expected 4294967320"},
	} {
		cells, _, err := parseMeta(test.b)
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: found %s, error %v, want %q", test.name, cellsText(cells), err, test.want)
		}
	}
}

// rawMetaFrame is a file of one frame with a payload of any kind.
func rawMetaFrame(payload []byte) []byte {
	b := appendMetaHeader(appendMetaPreamble(nil), 1, 0, len(payload), checksum(0, payload))
	return append(b, payload...)
}

// ---- one process

func TestMetaGivesBackWhatWasSaved(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a", "b")
	m, cells, err := openMeta(osFS{}, path)
	require.NoError(t, err)
	require.Empty(t, cells)

	saves := crashSaves()
	states := crashStates(saves)
	for i, save := range saves {
		require.NoError(t, m.save(save))
		require.NoError(t, m.save(nil))
		if i%3 == 0 {
			require.NoError(t, m.Close())
			require.NoError(t, m.Close())
			require.ErrorIs(t, m.save(save), fs.ErrClosed)
			m, cells, err = openMeta(osFS{}, path)
			require.NoError(t, err)
			require.Equal(t, states[i+1], cellsText(cells))
			require.Zero(t, m.cut)
		}
	}
	require.NoError(t, m.Close())

	for name, want := range map[string]fs.FileMode{
		"": fs.ModeDir | 0o700, "..": fs.ModeDir | 0o700, metaName: 0o600, metaMade: 0o600,
	} {
		info, err := os.Stat(filepath.Join(path, name))
		require.NoError(t, err)
		if info.Mode() != want {
			t.Errorf("%q has mode %v, want %v", name, info.Mode(), want)
		}
	}
	require.NoFileExists(t, filepath.Join(path, metaTemp))
}

func TestMetaKeepsTheOrderOfASaveThatNamesACellTwice(t *testing.T) {
	d := newCrashDisk()
	m, _, err := openMeta(d, "folder")
	require.NoError(t, err)
	given := []cell{testCell(9, 0, "b"), testCell(3, 0, "old"), testCell(3, 0, "new"), deletedCell(9, 0), testCell(2, 0, "")}
	want := slices.Clone(given)
	require.NoError(t, m.save(given))
	require.Equal(t, want, given, "the caller's slice was changed")
	require.NoError(t, m.Close())

	_, cells, err := openMeta(d, "folder")
	require.NoError(t, err)
	require.Equal(t, []cell{testCell(2, 0, ""), testCell(3, 0, "new")}, cells)
}

func TestMetaSaysHowMuchItCut(t *testing.T) {
	path := t.TempDir()
	b, _, states := damagedMeta()
	require.NoError(t, os.WriteFile(filepath.Join(path, metaName), append(b, make([]byte, 600)...), 0o600))
	for _, cut := range []int{600, 0} {
		m, cells, err := openMeta(osFS{}, path)
		require.NoError(t, err)
		require.Equal(t, states[3], cellsText(cells))
		require.Equal(t, cut, m.cut)
		require.NoError(t, m.Close())
	}
}

func TestMetaRefusesAFolderWithoutItsFile(t *testing.T) {
	for _, test := range []struct {
		name string
		harm func(file string) error
		want string
	}{
		{"removed", os.Remove, "file meta is missing, which was there"},
		{"emptied", func(file string) error { return os.Truncate(file, 0) }, "file meta is empty"},
		{"a folder", func(file string) error {
			os.Remove(file)
			return os.Mkdir(file, 0o700)
		}, "meta is no plain file but drwx------"},
		{"a link", func(file string) error {
			os.Rename(file, file+".away")
			return os.Symlink("meta.away", file)
		}, "meta is no plain file but Lrwxrwxrwx"},
	} {
		path := t.TempDir()
		m, _, err := openMeta(osFS{}, path)
		require.NoError(t, err)
		require.NoError(t, m.save([]cell{testCell(1, 0, "node")}))
		require.NoError(t, m.Close())
		require.NoError(t, test.harm(filepath.Join(path, metaName)))

		_, _, err = openMeta(osFS{}, path)
		if err == nil || !strings.Contains(err.Error(), test.want) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: error %v, want %q and the folder", test.name, err, test.want)
		}
	}
}

// A node that has not acknowledged anything may start again as another one.
func TestMetaMayBeOpenedAgainBeforeTheFirstSave(t *testing.T) {
	path := t.TempDir()
	for range 3 {
		m, cells, err := openMeta(osFS{}, path)
		require.NoError(t, err)
		require.Empty(t, cells)
		require.NoError(t, m.Close())
	}
}

func TestMetaRefusesFoldersItCannotTrust(t *testing.T) {
	plain := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(plain, nil, 0o600))
	_, _, err := openMeta(osFS{}, plain)
	require.ErrorContains(t, err, plain)
	_, _, err = openMeta(osFS{}, filepath.Join(plain, "below"))
	require.ErrorContains(t, err, plain)
	_, _, err = openMeta(osFS{}, "")
	require.ErrorContains(t, err, "no folder named")

	d := newCrashDisk()
	d.perm = 0o777
	_, _, err = openMeta(d, "folder")
	if metaOpenToAll(d.perm) {
		require.ErrorContains(t, err, "slotmesh: folder folder: everybody may write to it (drwxrwxrwx): chmod o-w it, or name a folder inside it")
		require.Empty(t, d.names())
	}
	d.perm = 0o770 // a volume with a group of its own
	_, _, err = openMeta(d, "folder")
	require.NoError(t, err)
}

func TestMetaDoesNotFollowALinkWhereItWrites(t *testing.T) {
	path, other := t.TempDir(), filepath.Join(t.TempDir(), "other")
	require.NoError(t, os.WriteFile(other, []byte("precious"), 0o600))
	require.NoError(t, os.Symlink(other, filepath.Join(path, metaTemp)))
	m, _, err := openMeta(osFS{}, path)
	require.NoError(t, err)
	require.NoError(t, os.Symlink(other, filepath.Join(path, metaTemp)))
	require.ErrorIs(t, m.save([]cell{testCell(1, 0, "node")}), fs.ErrExist)
	require.NoError(t, m.Close())
	b, err := os.ReadFile(other)
	require.NoError(t, err)
	require.Equal(t, "precious", string(b))
}

func TestMetaRefusesAStateOverItsLimit(t *testing.T) {
	d := newCrashDisk()
	limits := metaLimits{state: 1000, journal: 100}
	m, _, err := openMetaWithin(d, "folder", limits)
	require.NoError(t, err)
	fits := strings.Repeat("x", limits.state-metaCell)
	require.NoError(t, m.save([]cell{testCell(1, 0, fits)}))
	err = m.save([]cell{testCell(1, 0, fits+"x")})
	require.EqualError(t, err, "slotmesh: saving in folder folder: the node's state takes 1001 bytes, at most 1000 are allowed")
	require.Equal(t, err, m.save([]cell{testCell(1, 0, "small")}))
	require.NoError(t, m.Close())

	m, cells, err := openMetaWithin(d, "folder", limits)
	require.NoError(t, err)
	require.Equal(t, []cell{testCell(1, 0, fits)}, cells)
	require.NoError(t, m.Close())

	limits.state--
	_, _, err = openMetaWithin(d, "folder", limits)
	require.ErrorContains(t, err, "the node's state takes 1000 bytes, at most 999 are allowed")

	path := t.TempDir()
	file, err := os.Create(filepath.Join(path, metaName))
	require.NoError(t, err)
	require.NoError(t, file.Truncate(1<<40)) // takes no space
	require.NoError(t, file.Close())
	_, _, err = openMeta(osFS{}, path)
	require.ErrorContains(t, err, "meta has 1099511627776 bytes, at most 134217800 are allowed")
}

// The biggest file that saves make can be read.
func TestMetaReadsTheBiggestFileThatItWrites(t *testing.T) {
	for _, limits := range []metaLimits{{state: 1000, journal: 400}, {state: 1000, journal: 3000}} {
		d := newCrashDisk()
		m, _, err := openMetaWithin(d, "folder", limits)
		require.NoError(t, err)
		require.NoError(t, m.save([]cell{testCell(1, 0, strings.Repeat("x", 1000-metaCell-metaCell)), testCell(2, 0, "")}))
		biggest := int64(0)
		for range 200 {
			require.NoError(t, m.save([]cell{testCell(2, 0, "")}))
			f := d.names()[metaName]
			biggest = max(biggest, int64(len(f.content(len(f.writes)))))
			_, _, err := parseMeta(f.content(len(f.writes)))
			require.NoError(t, err)
		}
		require.LessOrEqual(t, biggest, limits.fileMax())
		require.Greater(t, biggest, limits.fileMax()-2*(metaHeader+metaCell))
	}
}

func TestMetaMayBeClosedDuringSaves(t *testing.T) {
	path := t.TempDir()
	m, _, err := openMeta(osFS{}, path)
	require.NoError(t, err)
	acked := 0
	var wg sync.WaitGroup
	started := make(chan struct{})
	wg.Go(func() {
		for {
			err := m.save([]cell{testCell(1, 0, strconv.Itoa(acked+1))})
			if err != nil {
				return
			}
			if acked++; acked == 3 {
				close(started)
			}
		}
	})
	<-started
	for range 3 {
		wg.Go(func() { m.Close() })
	}
	wg.Wait()
	m, cells, err := openMeta(osFS{}, path)
	require.NoError(t, err)
	require.Equal(t, []cell{testCell(1, 0, strconv.Itoa(acked))}, cells)
	require.NoError(t, m.Close())
}

func TestMetaFolderIsOfOneNodeAtATime(t *testing.T) {
	path := t.TempDir()
	m, _, err := openMeta(osFS{}, path)
	require.NoError(t, err)
	require.NoError(t, m.save([]cell{testCell(1, 0, "first")}))
	for range 2 {
		_, _, err = openMeta(osFS{}, path)
		require.ErrorIs(t, err, errFolderInUse)
		require.ErrorContains(t, err, "slotmesh: folder "+path+": in use by another node")
	}
	require.NoError(t, m.save([]cell{testCell(1, 0, "second")}))
	require.NoError(t, m.Close())

	m, cells, err := openMeta(osFS{}, path)
	require.NoError(t, err)
	require.Equal(t, []cell{testCell(1, 0, "second")}, cells)
	require.NoError(t, m.Close())
}

// ---- another process

const metaChildFolder = "SLOTMESH_META_TEST_FOLDER"

// In a process that the next test starts, this one saves until it is killed.
func TestMetaChildSavesUntilKilled(t *testing.T) {
	path := os.Getenv(metaChildFolder)
	if path == "" {
		return
	}
	m, _, err := openMeta(osFS{}, path)
	require.NoError(t, err)
	value := strings.Repeat("x", 3000) // often written anew
	for i := 1; ; i++ {
		n := strconv.Itoa(i)
		require.NoError(t, m.save([]cell{testCell(1, 0, n), testCell(2, uint8(i), n+value), testCell(3, 0, n)}))
		fmt.Println("saved", i)
	}
}

func TestMetaKeepsWhatAKilledProcessSaved(t *testing.T) {
	path := t.TempDir()
	for _, acks := range []int{1, 30, 200} {
		path := filepath.Join(path, strconv.Itoa(acks))
		child := exec.Command(os.Args[0], "-test.run=^TestMetaChildSavesUntilKilled$")
		child.Env = append(os.Environ(), metaChildFolder+"="+path)
		out, err := child.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, child.Start())
		t.Cleanup(func() { child.Process.Kill() }) // an error if it has ended

		acked := 0
		for lines := bufio.NewScanner(out); lines.Scan(); {
			if n, ok := strings.CutPrefix(lines.Text(), "saved "); ok {
				acked, err = strconv.Atoi(n)
				require.NoError(t, err)
			}
			if acked == acks {
				_, _, err := openMeta(osFS{}, path)
				require.ErrorIs(t, err, errFolderInUse)
				require.NoError(t, child.Process.Kill())
			}
		}
		require.Error(t, child.Wait(), "it was killed")
		require.GreaterOrEqual(t, acked, acks)

		if runtime.GOOS == "windows" {
			require.NoError(t, os.Remove(filepath.Join(path, metaLock))) // as the error says
		}
		m, cells, err := openMeta(osFS{}, path)
		require.NoError(t, err)
		require.NoError(t, m.Close())
		found, err := strconv.Atoi(string(cells[0].value))
		require.NoError(t, err)
		if found < acked || found > acked+1 {
			t.Errorf("found save %d, acknowledged were %d", found, acked)
		}
		if last := cells[len(cells)-1]; string(last.value) != strconv.Itoa(found) {
			t.Errorf("found save %d and a cell of save %s", found, last.value)
		}
	}
}

// ---- speed

// manyMetaCells are like those of a big cluster.
func manyMetaCells(n int) []cell {
	cells := make([]cell, n)
	for i := range cells {
		cells[i] = testCell(cellPeer, 0, fmt.Sprintf("%096d", i))
		binary.BigEndian.PutUint64(cells[i].key.id[:], uint64(i))
	}
	return cells
}

// One vote, as it is saved before it is given. Write is the least that it could
// take: the same bytes in one write, and a sync.
func BenchmarkMetaSave(b *testing.B) {
	vote := []cell{testCell(cellVote, 1, strings.Repeat("v", 60)), testCell(cellEpoch, 0, "12345")}
	b.Run("Write", func(b *testing.B) {
		file, err := os.Create(filepath.Join(b.TempDir(), "file"))
		require.NoError(b, err)
		defer file.Close()
		frame := make([]byte, metaHeader+cellsLen(vote))
		for b.Loop() {
			file.Write(frame)
			require.NoError(b, file.Sync())
		}
	})
	for _, n := range []int{100, 10_000} {
		b.Run(fmt.Sprintf("Cells%d", n), func(b *testing.B) {
			m, _, err := openMeta(osFS{}, b.TempDir())
			require.NoError(b, err)
			defer m.Close()
			require.NoError(b, m.save(slices.Concat(manyMetaCells(n), vote)))
			b.ReportAllocs()
			for b.Loop() {
				require.NoError(b, m.save(vote))
			}
		})
	}
}

func BenchmarkMetaOpen10000(b *testing.B) {
	path := b.TempDir()
	m, _, err := openMeta(osFS{}, path)
	require.NoError(b, err)
	require.NoError(b, m.save(manyMetaCells(10_000)))
	require.NoError(b, m.Close())
	b.ReportAllocs()
	for b.Loop() {
		m, cells, err := openMeta(osFS{}, path)
		if err != nil || len(cells) != 10_000 {
			b.Fatal(len(cells), err)
		}
		m.Close()
	}
}

// Reading and checking alone, without the file that a start writes.
func BenchmarkMetaParse10000(b *testing.B) {
	file := metaBytes(manyMetaCells(10_000))
	b.SetBytes(int64(len(file)))
	b.ReportAllocs()
	for b.Loop() {
		if cells, _, err := parseMeta(file); err != nil || len(cells) != 10_000 {
			b.Fatal(len(cells), err)
		}
	}
}
