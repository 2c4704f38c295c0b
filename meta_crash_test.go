package slotmesh

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/slotmesh/slotmesh/internal/racing"
	"github.com/stretchr/testify/require"
)

// crashDisk is a metaFS in memory with one folder. What is not synced is visible
// to a process, but a loss of power may keep any part of it: see outcomes.
type crashDisk struct {
	folder  bool // made
	durable bool // and synced in its parents
	perm    fs.FileMode
	files   map[string]*crashFile // synced names
	pending []nameChange          // in order, since the folder was synced
	locked  bool
	handles int // open files and folders
	renames int

	steps     int // done: every call is one
	cutAt     int // the step at which the power goes; never if negative
	failAt    int // the step that fails with failErr; never if negative
	failErr   error
	failShare float64 // of a write that fails, which is done nevertheless

	// A disk that says it has synced and has not.
	ignoreSync, ignoreFolderSync, ignoreParentSync bool
}

type crashFile struct {
	synced []byte
	writes []crashWrite // in order, since it was synced
	lost   bool         // a sync has failed: what was not written never is, and later syncs say that all is well
}

type crashWrite struct {
	at int64
	b  []byte
}

type nameChange struct {
	name string
	file *crashFile // nil: removed
	from string     // the name that it had, if renamed
}

var errPower = errors.New("no power")

func newCrashDisk() *crashDisk {
	return &crashDisk{perm: 0o700, cutAt: -1, failAt: -1, files: map[string]*crashFile{}}
}

func (d *crashDisk) step() error {
	if d.cutAt >= 0 && d.steps >= d.cutAt {
		return errPower
	}
	d.steps++
	if d.steps-1 == d.failAt {
		return d.failErr
	}
	return nil
}

// names is what a process sees.
func (d *crashDisk) names() map[string]*crashFile {
	names := maps.Clone(d.files)
	for _, c := range d.pending {
		c.apply(names)
	}
	return names
}

func (c nameChange) apply(names map[string]*crashFile) {
	if c.file == nil {
		delete(names, c.name)
		return
	}
	names[c.name] = c.file
	if names[c.from] == c.file {
		delete(names, c.from)
	}
}

// restart ends the process: the machine goes on.
func (d *crashDisk) restart() { d.cutAt, d.failAt, d.locked, d.handles = -1, -1, false, 0 }

func (d *crashDisk) open(string) (metaDir, error) {
	if err := d.step(); err != nil {
		return nil, err
	}
	d.folder = true
	d.handles++
	return &crashDir{crashDisk: d}, nil
}

// crashDir is an open folder.
type crashDir struct {
	*crashDisk
	holder bool
}

func (d *crashDir) mode() (fs.FileMode, error) { return fs.ModeDir | d.perm, d.step() }

func (d *crashDir) lock() error {
	if err := d.step(); err != nil {
		return err
	}
	if d.locked {
		return errFolderInUse
	}
	d.locked, d.holder = true, true
	return nil
}

func (d *crashDir) close() error {
	if d.holder {
		d.locked = false
	}
	d.handles--
	return d.step()
}

func (d *crashDir) read(name string, most int64) ([]byte, error) {
	if err := d.step(); err != nil {
		return nil, err
	}
	f := d.names()[name]
	if f == nil {
		return nil, fs.ErrNotExist
	}
	b := f.content(len(f.writes))
	if int64(len(b)) > most {
		return nil, fmt.Errorf("%d bytes, at most %d", len(b), most)
	}
	return b, nil
}

func (d *crashDir) exists(name string) (bool, error) {
	return d.names()[name] != nil, d.step()
}

func (d *crashDir) create(name string) (metaFile, error) {
	if err := d.step(); err != nil {
		return nil, err
	}
	if d.names()[name] != nil {
		return nil, fs.ErrExist
	}
	d.handles++
	f := &crashFile{}
	d.pending = append(d.pending, nameChange{name: name, file: f})
	return &crashHandle{d.crashDisk, f}, nil
}

func (d *crashDir) rename(from, to string) error {
	if err := d.step(); err != nil {
		return err
	}
	f := d.names()[from]
	if f == nil {
		return fs.ErrNotExist
	}
	d.renames++
	d.pending = append(d.pending, nameChange{name: to, file: f, from: from})
	return nil
}

func (d *crashDir) remove(name string) error {
	if err := d.step(); err != nil {
		return err
	}
	if d.names()[name] == nil {
		return fs.ErrNotExist
	}
	d.pending = append(d.pending, nameChange{name: name})
	return nil
}

func (d *crashDir) sync() error {
	if err := d.step(); err != nil || d.ignoreFolderSync {
		return err
	}
	d.files, d.pending = d.names(), nil
	return nil
}

func (d *crashDir) syncParents() error {
	if err := d.step(); err != nil || d.ignoreParentSync {
		return err
	}
	d.durable = true
	return nil
}

type crashHandle struct {
	disk *crashDisk
	file *crashFile
}

func (h *crashHandle) WriteAt(b []byte, at int64) (int, error) {
	err := h.disk.step()
	if errors.Is(err, errPower) {
		return 0, err // a part of it is an outcome of the step behind
	}
	n := len(b)
	if err != nil {
		n = int(h.disk.failShare * float64(n))
	}
	if n > 0 {
		h.file.writes = append(h.file.writes, crashWrite{at, bytes.Clone(b[:n])})
	}
	return n, err
}

func (h *crashHandle) Sync() error {
	err := h.disk.step()
	switch {
	case errors.Is(err, errPower):
	case err != nil:
		h.file.lost = true
	case !h.file.lost && !h.disk.ignoreSync:
		h.file.synced, h.file.writes = h.file.content(len(h.file.writes)), nil
	}
	return err
}

func (h *crashHandle) Close() error {
	h.disk.handles--
	return h.disk.step()
}

// content is what is in the file once the first n writes are.
func (f *crashFile) content(n int) []byte {
	b := bytes.Clone(f.synced)
	for _, w := range f.writes[:n] {
		if grow := int(w.at) + len(w.b) - len(b); grow > 0 {
			b = append(b, make([]byte, grow)...)
		}
		copy(b[w.at:], w.b)
	}
	return b
}

// ---- outcomes of a loss of power

// outcomes yields the disks that a loss of power may leave, before the next step
// is done or in the middle of it: the folder may be lost, of the changes of its
// names any selection is made, and the file has parts of what was written to it.
// Where not all is asked for, tears come at a few places only.
func (d *crashDisk) outcomes(all bool) iter.Seq2[string, *crashDisk] {
	return func(yield func(string, *crashDisk) bool) {
		seen := map[string]bool{}
		if !d.durable && !yield("no folder", newCrashDisk()) || !d.folder {
			return
		}
		for made := range 1 << len(d.pending) {
			names := maps.Clone(d.files)
			for i, c := range d.pending {
				if made>>i&1 == 1 {
					c.apply(names)
				}
			}
			if names[metaName] == nil {
				if !yield(fmt.Sprintf("names %b", made), diskWith(names, nil)) {
					return
				}
				continue
			}
			for tear, content := range names[metaName].tears(all) {
				if key := fmt.Sprintf("%x %v", content, slices.Sorted(maps.Keys(names))); seen[key] {
					continue
				} else {
					seen[key] = true
				}
				if !yield(fmt.Sprintf("names %b, %s", made, tear), diskWith(names, content)) {
					return
				}
			}
		}
	}
}

// diskWith is a disk after a restart; other files than the node's have half of
// what was written to them.
func diskWith(names map[string]*crashFile, content []byte) *crashDisk {
	d := newCrashDisk()
	d.folder, d.durable = true, true
	for name, f := range names {
		b := f.content(len(f.writes))
		if len(f.writes) > 0 {
			b = b[:len(b)/2]
		}
		if name == metaName {
			b = content
		}
		d.files[name] = &crashFile{synced: b}
	}
	return d
}

// tears yields what may be in a file: up to each byte as one write left it and
// from there as another one did or none; with zeros before or behind that byte,
// where the size is on disk and the data is not; with what an older file left.
func (f *crashFile) tears(all bool) iter.Seq2[string, []byte] {
	return func(yield func(string, []byte) bool) {
		last := f.content(len(f.writes))
		if len(f.writes) == 0 {
			yield("whole", last)
			return
		}
		first := len(last)
		for _, w := range f.writes {
			first = min(first, int(w.at))
		}
		cuts := []int{first, first + 1, (first + len(last)) / 2, len(last) - 1, len(last)}
		if all {
			cuts = nil
			for k := first; k <= len(last); k++ {
				cuts = append(cuts, k)
			}
		}
		for i := range len(f.writes) + 1 {
			head := f.content(i)
			for _, k := range cuts {
				k = min(k, len(head))
				for j := range len(f.writes) + 1 {
					b := slices.Clone(head[:k])
					if tail := f.content(j); k < len(tail) {
						b = append(b, tail[k:]...)
					}
					if !yield(fmt.Sprintf("write %d to byte %d, then write %d", i, k, j), b) {
						return
					}
				}
				zeros := append(slices.Clone(head[:k]), make([]byte, len(last)-k)...)
				late := slices.Clone(last)
				clear(late[min(len(f.synced), k):k])
				junk := append(slices.Clone(head[:k]), oldMetaBlocks()...)
				if !yield(fmt.Sprintf("write %d to byte %d, zeros", i, k), zeros) ||
					!yield(fmt.Sprintf("zeros to byte %d", k), late) ||
					!yield(fmt.Sprintf("write %d to byte %d, old blocks", i, k), junk) {
					return
				}
			}
		}
	}
}

// oldMetaBlocks are frames of another file, with every number that is expected.
func oldMetaBlocks() []byte {
	var b bytes.Buffer
	for number := range uint64(2 * 20) {
		writeMetaFrame(&b, 7, number, []cell{testCell(1, 0, "another node")})
	}
	return b.Bytes()
}

// ---- what is saved

var crashLimits = metaLimits{state: 4096, journal: 150}

// crashScript is saves, and the states before, between and after them.
type crashScript struct {
	saves  [][]cell
	states []string
}

// newCrashScript makes a script of the first n saves.
func newCrashScript(n int) crashScript {
	saves := crashSaves()[:n]
	return crashScript{saves, crashStates(saves)}
}

// crashSaves write new cells, change them, delete them and write them again; the
// state grows over a frame and shrinks.
func crashSaves() [][]cell {
	long := strings.Repeat("long", 20)
	return [][]cell{
		{testCell(1, 0, "node"), testCell(2, 0, "me"), testCell(14, 0, "1")},
		{testCell(6, 3, "promise 1")},
		{testCell(6, 3, "promise 2"), testCell(14, 0, "2")},
		{testCell(2, 9, "him"), testCell(2, 7, long), testCell(3, 200, "slots")},
		{testCell(2, 9, ""), deletedCell(2, 7)},
		{testCell(6, 3, "promise 3"), testCell(6, 3, "promise 4"), deletedCell(9, 9)},
		{deletedCell(3, 200), testCell(3, 200, long)},
		{testCell(6, 4, "promise"), testCell(14, 0, "3")},
		{deletedCell(6, 4), testCell(14, 0, "4")},
		{testCell(1, 0, "node again")},
	}
}

func testCell(kind cellKind, page uint8, value string) cell {
	return cell{key: cellKey{kind: kind, page: page, id: [20]byte{19: page}}, value: []byte(value)}
}

func deletedCell(kind cellKind, page uint8) cell {
	return cell{key: cellKey{kind: kind, page: page, id: [20]byte{19: page}}}
}

// crashStates are the states before, between and after saves.
func crashStates(saves [][]cell) []string {
	state := map[cellKey][]byte{}
	states := []string{""}
	for _, cells := range saves {
		for _, c := range cells {
			if state[c.key] = c.value; c.value == nil {
				delete(state, c.key)
			}
		}
		var now []cell
		for k, v := range state {
			now = append(now, cell{k, v})
		}
		slices.SortFunc(now, func(a, b cell) int { return a.key.compare(b.key) })
		states = append(states, cellsText(now))
	}
	return states
}

func cellsText(cells []cell) string {
	var b strings.Builder
	for _, c := range cells {
		fmt.Fprintf(&b, "%d/%d/%x=%q ", c.key.kind, c.key.page, c.key.id[19], c.value)
	}
	return b.String()
}

// crashRun is what a process has done: saves up to acked are acknowledged, those
// up to begun may be on disk.
type crashRun struct{ acked, begun int }

// run opens the folder and makes the saves that are not there yet, until one
// fails.
func (r *crashRun) run(d *crashDisk, script crashScript) error {
	m, cells, err := openMetaWithin(d, "folder", crashLimits)
	if err != nil {
		return err
	}
	defer m.Close()
	if err := r.found(cells, script); err != nil {
		return err
	}
	for _, cells := range script.saves[r.acked:] {
		r.begun++
		if err := m.save(cells); err != nil {
			return err
		}
		r.acked++
	}
	return nil
}

// found compares what a start has found with what may be there.
func (r *crashRun) found(cells []cell, script crashScript) error {
	for i := r.acked; i <= r.begun; i++ {
		if script.states[i] == cellsText(cells) {
			r.acked, r.begun = i, i
			return nil
		}
	}
	return fmt.Errorf("found %s, want a state from %d to %d: %q", cellsText(cells), r.acked, r.begun, script.states[r.acked:r.begun+1])
}

// recovers starts a node from the disk and makes all saves that are missing.
func (r crashRun) recovers(d *crashDisk, script crashScript) error {
	if err := r.run(d, script); err != nil {
		return err
	}
	d.restart()
	again := crashRun{len(script.saves), len(script.saves)}
	if err := again.run(d, script); err != nil {
		return fmt.Errorf("then: %w", err)
	}
	return nil
}

// stepsOf is how many steps all saves take on a new disk.
func stepsOf(t *testing.T, script crashScript) int {
	t.Helper()
	d := newCrashDisk()
	require.NoError(t, new(crashRun).run(d, script))
	require.Zero(t, d.handles)
	require.GreaterOrEqual(t, d.renames, 2, "never written anew")
	return d.steps
}

// ---- tests

func TestMetaKeepsWholeSavesWhereverPowerIsLost(t *testing.T) {
	racing.OneGoroutine(t)
	t.Parallel()
	script := newCrashScript(10)
	outcomes := 0
	for cut := range stepsOf(t, script) + 1 {
		d := newCrashDisk()
		d.cutAt = cut
		var r crashRun
		if err := r.run(d, script); err != nil {
			require.ErrorIs(t, err, errPower)
		}
		for what, after := range d.outcomes(true) {
			outcomes++
			if err := r.recovers(after, script); err != nil {
				t.Errorf("power lost at step %d of save %d, %s: %v", cut, r.begun, what, err)
			}
		}
		require.False(t, t.Failed())
	}
	t.Logf("%d outcomes", outcomes)
}

// A process that dies leaves the next one to read what is not on disk yet.
func TestMetaKeepsWholeSavesAfterProcessAndPowerAreLost(t *testing.T) {
	racing.OneGoroutine(t)
	t.Parallel()
	script := newCrashScript(6)
	steps := stepsOf(t, script)
	stride := racing.Fewer(1, 5) // the detector is slow, and what it looks for is not here
	for killed := range steps + 1 {
		for cut := killed % stride; cut < steps; cut += stride {
			d := newCrashDisk()
			d.cutAt = killed
			var r crashRun
			if err := r.run(d, script); err != nil {
				require.ErrorIs(t, err, errPower)
			}
			d.restart()
			d.cutAt = d.steps + cut
			err := r.run(d, script)
			if err != nil {
				require.ErrorIs(t, err, errPower, "killed at step %d", killed)
			}
			for what, after := range d.outcomes(false) {
				if err := r.recovers(after, script); err != nil {
					t.Errorf("killed at step %d, power lost %d steps later, %s: %v", killed, cut, what, err)
				}
			}
			require.False(t, t.Failed())
			if err == nil {
				break // the second process has done all
			}
		}
	}
}

func TestMetaSavesNothingAfterAnError(t *testing.T) {
	racing.OneGoroutine(t)
	t.Parallel()
	script := newCrashScript(10)
	fault := errors.New("no space, or a bad disk")
	for step := range stepsOf(t, script) {
		for _, share := range []float64{0, 0.5, 1} {
			where := fmt.Sprintf("error at step %d, %v of it written", step, share)
			d := newCrashDisk()
			d.failAt, d.failErr, d.failShare = step, fault, share
			var r crashRun
			m, _, err := openMetaWithin(d, "folder", crashLimits)
			if err != nil {
				require.ErrorIs(t, err, fault, where)
			} else {
				r.saveUntilError(t, m, d, script, fault, where)
			}
			require.False(t, d.locked, where)
			require.Zero(t, d.handles, where)
			require.NotContains(t, d.names(), metaTemp, where)
			for what, after := range d.outcomes(false) {
				if err := r.recovers(after, script); err != nil {
					t.Errorf("%s, power lost, %s: %v", where, what, err)
				}
			}
			d.restart()
			if err := r.recovers(d, script); err != nil {
				t.Errorf("%s: %v", where, err)
			}
			require.False(t, t.Failed())
		}
	}
}

// saveUntilError makes saves until one fails, and then sees that no other one
// touches the disk, which is whole again.
func (r *crashRun) saveUntilError(t *testing.T, m *meta, d *crashDisk, script crashScript, fault error, where string) {
	t.Helper()
	defer m.Close()
	for _, cells := range script.saves {
		r.begun++
		err := m.save(cells)
		if err == nil {
			r.acked++
			continue
		}
		require.ErrorIs(t, err, fault, where)
		steps := d.steps
		require.Equal(t, err, m.save(cells), where)
		require.Equal(t, err, m.save(nil), where)
		require.Equal(t, steps, d.steps, where)
		return
	}
}

// If these disks did not fail the tests above, those would prove nothing.
func TestCrashesShowEverySyncThatIsMissing(t *testing.T) {
	racing.OneGoroutine(t)
	t.Parallel()
	script := newCrashScript(6)
	for _, test := range []struct {
		name string
		lie  func(*crashDisk)
	}{
		{"of the file", func(d *crashDisk) { d.ignoreSync = true }},
		{"of the folder", func(d *crashDisk) { d.ignoreFolderSync = true }},
		{"of the folders above", func(d *crashDisk) { d.ignoreParentSync = true }},
	} {
		found := 0
		for cut := range stepsOf(t, script) + 1 {
			d := newCrashDisk()
			test.lie(d)
			d.cutAt = cut
			var r crashRun
			r.run(d, script) // fails when the power does
			if len(d.pending) > 8 {
				break // outcomes are all selections of them
			}
			for _, after := range d.outcomes(false) {
				if r.recovers(after, script) != nil {
					found++
				}
			}
		}
		if found == 0 {
			t.Errorf("a disk that ignores syncs %s passes the tests", test.name)
		}
	}
}

func TestMetaIsWrittenAnewBeforeItOutgrowsItsState(t *testing.T) {
	t.Parallel()
	d := newCrashDisk()
	m, _, err := openMetaWithin(d, "folder", metaLimits{state: 1 << 20, journal: 1000})
	require.NoError(t, err)
	require.NoError(t, m.save([]cell{testCell(1, 0, strings.Repeat("x", 500)), testCell(14, 0, "")}))

	rewritten, stamp := 0, m.stamp
	for i := range 1000 {
		require.NoError(t, m.save([]cell{testCell(14, 0, fmt.Sprintf("%04d", i))}))
		if m.stamp != stamp {
			rewritten, stamp = rewritten+1, m.stamp
		}
		size := len(d.files[metaName].content(len(d.files[metaName].writes)))
		if size > metaPreamble+2*metaHeader+m.size+metaJournalFactor*m.size {
			t.Fatalf("%d bytes for a state of %d", size, m.size)
		}
	}
	// A save takes 58 bytes, the state 556; the journal may take 4 times that.
	if rewritten != 1000/39 {
		t.Errorf("written anew %d times, want %d", rewritten, 1000/39)
	}
	require.NoError(t, m.Close())
	require.Equal(t, []string{metaMade, metaName}, slices.Sorted(maps.Keys(d.names())))
}
