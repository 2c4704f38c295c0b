package slotmesh

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"slices"
	"sync"
)

// meta is the file in which a node keeps the cells that it must remember.
//
//	file     preamble │ frame 0: all cells │ frame 1: a save │ … │ seal
//	preamble "slotmesh" │ format, 4 │ sum of these, 4
//	frame    stamp, 8 │ number, 8 │ length, 4 │ sum of the payload, 4 │ sum of these, 4 │ payload
//	payload  cells, keys ascending: kind, 1 │ page, 1 │ id, 20 │ length, 4 │ value
//
// Numbers are big-endian, sums CRC-32C. The stamp is drawn for each file, so
// that bytes of an older one, which a file system may show where a write was
// cut off, are no frame of it. A length of metaNoValue deletes a cell; frame 0
// has none of those.
//
// A save appends a frame and syncs. Once the appended frames outgrow the first
// one, and at each start, all cells are written anew: beside the file, synced,
// renamed over it, the folder synced. So wherever a crash comes, the file has
// every save that was acknowledged, and perhaps the one that was under way.
//
// What is damaged is told from what was cut off by what follows it. A frame is
// written when the one before is on disk, so a frame that does not hold is
// either an unfinished write, which is cut, or has a frame of the same stamp
// somewhere behind it: then it was acknowledged, and the node does not start.
// The last save has a seal behind it for that purpose, a frame without cells at
// the place where the next frame goes. The kernel writes the seal when it likes.
//
// What remains: damage in the last save of a machine that lost power before the
// seal was on disk looks like a cut-off write, and a file that has lost whole
// frames at its end looks like an older one. Then the node starts and has
// forgotten saves that it had acknowledged, maybe a vote that decided something;
// nothing else makes up for that. A node whose file is gone altogether is no
// such danger: it would be a new voter, with a new key.
//
// It relies on a disk that does not harm bytes that stay the same while a write
// around them is cut off.
type meta struct {
	path   string // of the folder
	limits metaLimits
	cut    int // bytes at the end of the file, found at the start, of a save that was cut off

	mu      sync.Mutex // guards what follows: Close may come at any time
	dir     metaDir    // nil once closed
	err     error      // of the save that failed: none is made after it
	cells   []cell     // the state, keys ascending
	size    int        // of cells, encoded
	file    metaFile   // nil before the first save
	stamp   uint64     // of file
	number  uint64     // of the next frame
	end     int64      // of the frames in file
	first   int        // bytes of cells in frame 0
	journal int        // bytes of the frames behind it
	marked  bool       // the folder has metaMade
}

// metaLimits are bytes.
type metaLimits struct {
	state   int // most that all cells take
	journal int // least that is appended before all is written anew
}

// defaultMetaLimits bound what a start reads into memory, far above the state of
// any cluster.
var defaultMetaLimits = metaLimits{state: 64 << 20, journal: 64 << 10}

// fileMax is the size of the biggest file that is read: one that save writes.
func (l metaLimits) fileMax() int64 {
	return int64(metaPreamble + 2*metaHeader + l.state + max(l.journal, l.state))
}

// Files in the folder. Other names there are not looked at.
const (
	metaName = "meta"     // the file
	metaTemp = "meta.new" // the next one, not finished
	metaMade = "made"     // says that there must be a metaName
)

const (
	metaMagic    = "slotmesh"
	metaFormat   = 1
	metaPreamble = len(metaMagic) + 8
	metaHeader   = 28
	metaCell     = 26
	metaNoValue  = 1<<32 - 1

	metaJournalFactor = 4        // of frame 0, which the journal may take
	metaChunk         = 16 << 10 // is written at a time
)

// openMeta opens the folder of a node, makes it if there is none, and returns
// what the node has saved, keys ascending; no cells if it is a new node. They
// are valid until the first save; values may be kept, but not changed.
//
// It fails if another node has the folder open, if it may not be read or written
// or may be written by everybody, if a newer version of the format is found in
// it, and if what is found is damaged: see meta. Then nothing has changed.
func openMeta(fsys metaFS, path string) (*meta, []cell, error) {
	return openMetaWithin(fsys, path, defaultMetaLimits)
}

func openMetaWithin(fsys metaFS, path string, limits metaLimits) (*meta, []cell, error) {
	if path == "" {
		return nil, nil, errors.New("slotmesh: no folder named to keep the node's state in")
	}
	dir, err := fsys.open(path)
	if err != nil {
		return nil, nil, fmt.Errorf("slotmesh: folder %s: %w", path, err)
	}
	m := &meta{path: path, limits: limits, dir: dir}
	if err := m.start(); err != nil {
		m.Close() // the first error is the one to tell
		return nil, nil, fmt.Errorf("slotmesh: folder %s: %w", path, err)
	}
	return m, m.cells, nil
}

func (m *meta) start() error {
	mode, err := m.dir.mode()
	if err != nil {
		return err
	}
	if metaOpenToAll(mode) {
		return fmt.Errorf("everybody may write to it (%v): chmod o-w it, or name a folder inside it", mode)
	}
	if err := m.dir.lock(); err != nil {
		return err
	}
	if m.marked, err = m.dir.exists(metaMade); err != nil {
		return err
	}
	b, err := m.dir.read(metaName, m.limits.fileMax())
	if errors.Is(err, fs.ErrNotExist) {
		return m.startNew()
	}
	if err != nil {
		return err
	}
	if m.cells, m.cut, err = parseMeta(b); err != nil {
		return fmt.Errorf("file %s %w", metaName, err)
	}
	m.size = cellsLen(m.cells)
	if err := m.checkSize(); err != nil {
		return err
	}
	if err := m.removeTemp(); err != nil {
		return err
	}
	// What has been read may not be on disk yet, as the process that wrote it
	// may have died before it synced. Nothing may be built on it before it is.
	return m.rewrite()
}

// startNew leaves the file to the first save, so that a file without a node's
// identity is none of ours.
func (m *meta) startNew() error {
	if m.marked {
		return fmt.Errorf("file %s is missing, which was there: this node has lost its votes and its identity; start a new node in an empty folder", metaName)
	}
	if err := m.removeTemp(); err != nil {
		return err
	}
	return m.dir.syncParents()
}

// removeTemp removes what a rewrite has left that was cut off. It comes after all
// that may be refused: who is refused changes nothing.
func (m *meta) removeTemp() error {
	err := m.dir.remove(metaTemp)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// save writes cells, the newest of each key, all or none; a nil value deletes.
// They are on disk when it returns nil. Values are kept, and must not be changed.
//
// An error is final: whether the cells are saved is known only when the folder
// is opened again, and every later save returns the same error. A sync that
// failed is not tried again, as the kernel may have dropped what it could not
// write and say that all is well.
func (m *meta) save(cells []cell) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.err != nil:
		return m.err
	case m.dir == nil:
		return fmt.Errorf("slotmesh: folder %s: %w", m.path, fs.ErrClosed)
	case len(cells) == 0:
		return nil
	}
	if err := m.write(newestCells(slices.Clone(cells))); err != nil {
		m.err = fmt.Errorf("slotmesh: saving in folder %s: %w", m.path, err)
	}
	return m.err
}

func (m *meta) write(batch []cell) error {
	m.apply(batch)
	if err := m.checkSize(); err != nil {
		return err
	}
	n := metaHeader + cellsLen(batch)
	if m.file == nil || m.journal+n > m.journalMax() {
		return m.rewrite()
	}
	m.journal += n
	return m.append(batch)
}

func (m *meta) journalMax() int {
	return max(m.limits.journal, min(metaJournalFactor*m.first, m.limits.state))
}

func (m *meta) checkSize() error {
	if m.size > m.limits.state {
		return fmt.Errorf("the node's state takes %d bytes, at most %d are allowed", m.size, m.limits.state)
	}
	return nil
}

// apply changes the state in memory. Most saves change values of cells that are
// there, so those have no need to sort.
func (m *meta) apply(batch []cell) {
	var others []cell
	for _, c := range batch {
		i, ok := slices.BinarySearchFunc(m.cells, c.key, func(c cell, k cellKey) int { return c.key.compare(k) })
		if !ok || c.value == nil {
			others = append(others, c)
			continue
		}
		m.size += len(c.value) - len(m.cells[i].value)
		m.cells[i].value = c.value
	}
	if len(others) > 0 {
		m.cells = liveCells(newestCells(append(m.cells, others...)))
		m.size = cellsLen(m.cells)
	}
}

// append writes a frame over the seal of the one before, syncs, and seals it.
func (m *meta) append(batch []cell) error {
	var frame bytes.Buffer
	frame.Grow(metaHeader + cellsLen(batch))
	writeMetaFrame(&frame, m.stamp, m.number, batch) // a buffer has no errors
	if _, err := m.file.WriteAt(frame.Bytes(), m.end); err != nil {
		return err
	}
	if err := m.file.Sync(); err != nil {
		return err
	}
	m.number++
	m.end += int64(frame.Len())

	seal := appendMetaHeader(nil, m.stamp, m.number, 0, 0)
	_, err := m.file.WriteAt(seal, m.end)
	return err
}

// rewrite puts a file with the state of now in the place of the one that is
// there.
func (m *meta) rewrite() error {
	stamp := newMetaStamp()
	file, err := m.dir.create(metaTemp)
	if err != nil {
		return err
	}
	end, err := m.fill(file, stamp)
	if err != nil {
		file.Close()
		m.dir.remove(metaTemp) // may be what fills the disk; the next start removes it too
		return err
	}
	if m.file != nil {
		m.file.Close() // has no name any more
	}
	m.file, m.stamp, m.number, m.end = file, stamp, 1, end
	m.first, m.journal = m.size, 0
	return m.mark()
}

// fill writes the state to a file and gives it its name, for good.
func (m *meta) fill(file metaFile, stamp uint64) (end int64, err error) {
	w := io.NewOffsetWriter(file, 0)
	out := bufio.NewWriterSize(w, metaChunk)
	out.Write(appendMetaPreamble(nil)) // Flush tells its error
	writeMetaFrame(out, stamp, 0, m.cells)
	if err := out.Flush(); err != nil {
		return 0, err
	}
	if err := file.Sync(); err != nil {
		return 0, err
	}
	if err := m.dir.rename(metaTemp, metaName); err != nil {
		return 0, err
	}
	if err := m.dir.sync(); err != nil {
		return 0, err
	}
	return int64(metaPreamble + metaHeader + m.size), nil
}

// mark leaves a sign in the folder that the file exists. It comes when the file
// is safe: a node that has acknowledged nothing yet may still be started anew.
func (m *meta) mark() error {
	if m.marked {
		return nil
	}
	file, err := m.dir.create(metaMade)
	if err != nil {
		return err
	}
	m.marked = true
	return errors.Join(file.Close(), m.dir.sync())
}

// Close ends the use of the folder, after a save that is under way. It is
// idempotent.
func (m *meta) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.dir == nil {
		return nil
	}
	var err error
	if m.file != nil {
		err = m.file.Close()
	}
	err = errors.Join(err, m.dir.close())
	m.dir, m.file, m.cells = nil, nil, nil
	return err
}

// ---- cells

// newestCells sorts cells by key and keeps the last of each.
func newestCells(cells []cell) []cell {
	slices.SortStableFunc(cells, func(a, b cell) int { return a.key.compare(b.key) })
	kept := cells[:0]
	for i, c := range cells {
		if i+1 == len(cells) || cells[i+1].key != c.key {
			kept = append(kept, c)
		}
	}
	clear(cells[len(kept):])
	return kept
}

func liveCells(cells []cell) []cell {
	return slices.DeleteFunc(cells, func(c cell) bool { return c.value == nil })
}

// cellsLen is how many bytes cells take in a frame.
func cellsLen(cells []cell) int {
	n := metaCell * len(cells)
	for _, c := range cells {
		n += len(c.value)
	}
	return n
}

func appendMetaCellHead(b []byte, c cell) []byte {
	b = append(b, byte(c.key.kind), c.key.page)
	b = append(b, c.key.id[:]...)
	if c.value == nil {
		return binary.BigEndian.AppendUint32(b, metaNoValue)
	}
	return binary.BigEndian.AppendUint32(b, uint32(len(c.value)))
}

// ---- writing

// checksum is CRC-32C, gone on with.
func checksum(sum uint32, b []byte) uint32 {
	return crc32.Update(sum, crc32.MakeTable(crc32.Castagnoli), b)
}

func appendMetaSum(b []byte, of []byte) []byte {
	return binary.BigEndian.AppendUint32(b, checksum(0, of))
}

func newMetaStamp() uint64 {
	var b [8]byte
	rand.Read(b[:]) // has no errors
	return binary.BigEndian.Uint64(b[:])
}

func appendMetaPreamble(b []byte) []byte {
	b = append(b, metaMagic...)
	b = binary.BigEndian.AppendUint32(b, metaFormat)
	return appendMetaSum(b, b)
}

func appendMetaHeader(b []byte, stamp, number uint64, length int, sum uint32) []byte {
	at := len(b)
	b = binary.BigEndian.AppendUint64(b, stamp)
	b = binary.BigEndian.AppendUint64(b, number)
	b = binary.BigEndian.AppendUint32(b, uint32(length))
	b = binary.BigEndian.AppendUint32(b, sum)
	return appendMetaSum(b, b[at:])
}

// writeMetaFrame writes a frame of cells, which it goes through twice: it need
// not hold them encoded. The errors are left to the writer.
func writeMetaFrame(w io.Writer, stamp, number uint64, cells []cell) {
	head := make([]byte, 0, metaHeader)
	var sum uint32
	for _, c := range cells {
		head = appendMetaCellHead(head[:0], c)
		sum = checksum(checksum(sum, head), c.value)
	}
	w.Write(appendMetaHeader(head[:0], stamp, number, cellsLen(cells), sum))
	for _, c := range cells {
		w.Write(appendMetaCellHead(head[:0], c))
		w.Write(c.value)
	}
}

// ---- reading

// parseMeta returns the cells that a file says, and the number of bytes that are
// to be cut off its end. The error continues a sentence about the file. The
// cells share no memory with b; at most three times its length is allocated.
func parseMeta(b []byte) (cells []cell, cut int, err error) {
	r := metaReader{b: b}
	if err := r.preamble(); err != nil {
		return nil, 0, err
	}
	n := 0
	start := r
	for payload := range r.frames {
		n += r.countCells(payload)
	}
	if r.err != nil {
		return nil, 0, r.err
	}
	cells = make([]cell, 0, n)
	r = start
	for payload := range r.frames {
		cells = appendMetaCells(cells, payload)
	}
	cells = liveCells(newestCells(cells))
	for i := range cells {
		cells[i].value = append([]byte{}, cells[i].value...)
	}
	return cells, len(b) - r.at, nil
}

// metaReader goes through the frames of a file.
type metaReader struct {
	b      []byte
	at     int // where the frame begins that is read, or the payload
	stamp  uint64
	number uint64
	err    error
}

// metaHead is what the header of a frame says.
type metaHead struct {
	stamp, number uint64
	length, sum   uint32
}

// parseMetaHeader returns ok if there is a whole header at the start of b.
func parseMetaHeader(b []byte) (h metaHead, ok bool) {
	if len(b) < metaHeader || checksum(0, b[:24]) != binary.BigEndian.Uint32(b[24:]) {
		return h, false
	}
	return metaHead{
		stamp:  binary.BigEndian.Uint64(b),
		number: binary.BigEndian.Uint64(b[8:]),
		length: binary.BigEndian.Uint32(b[16:]),
		sum:    binary.BigEndian.Uint32(b[20:]),
	}, true
}

func (h metaHead) payload(b []byte) (payload []byte, ok bool) {
	b = b[metaHeader:]
	if uint64(h.length) > uint64(len(b)) {
		return nil, false
	}
	payload = b[:h.length]
	return payload, checksum(0, payload) == h.sum
}

// preamble reads what the versions of the format have in common.
func (r *metaReader) preamble() error {
	switch b := r.b; {
	case len(b) == 0:
		return errors.New("is empty: " + metaLost)
	case len(b) < metaPreamble:
		return r.damaged("%d bytes, expected a preamble of %d", len(b), metaPreamble)
	case string(b[:len(metaMagic)]) != metaMagic:
		return fmt.Errorf("is not the file of a node: it begins with %q, expected %q", b[:len(metaMagic)], metaMagic)
	case checksum(0, b[:12]) != binary.BigEndian.Uint32(b[12:]):
		return r.damaged("the preamble does not match its sum")
	}
	switch format := binary.BigEndian.Uint32(r.b[8:]); {
	case format > metaFormat:
		return fmt.Errorf("has format %d, written by a newer version; this one reads format %d", format, metaFormat)
	case format < metaFormat:
		return fmt.Errorf("has format %d, expected %d", format, metaFormat)
	}
	r.at = metaPreamble
	return nil
}

const metaLost = "the node does not start, as it may have forgotten votes; start a new node in an empty folder"

func (r *metaReader) damaged(format string, args ...any) error {
	return fmt.Errorf("is damaged at byte %d: %s: %s", r.at, fmt.Sprintf(format, args...), metaLost)
}

// frames yields the payload of each frame, and stops at the end, at what is to
// be cut, or with r.err.
func (r *metaReader) frames(yield func(payload []byte) bool) {
	for r.at < len(r.b) {
		payload, ok := r.frame()
		if r.err != nil || !ok || !yield(payload) || r.err != nil {
			return
		}
		r.at += metaHeader + len(payload)
		r.number++
	}
	if r.number == 0 {
		r.err = r.damaged("the file ends, expected all cells of the node")
	}
}

// frame reads one frame; it is not ok if it was cut off.
func (r *metaReader) frame() (payload []byte, ok bool) {
	rest := r.b[r.at:]
	h, ok := parseMetaHeader(rest)
	if ok && r.number == 0 {
		r.stamp = h.stamp
	}
	switch whole := ok && h.stamp == r.stamp; {
	case whole && h.number != r.number:
		r.err = r.damaged("frame %d, expected %d", h.number, r.number)
	case whole:
		if payload, ok = h.payload(rest); ok {
			return payload, true
		}
	}
	switch {
	case r.err != nil:
	case r.number == 0:
		// It had its name only when it was on disk.
		r.err = r.damaged("the first frame, all cells of the node, does not match its sums")
	case r.hasFrame(rest[1:]):
		r.err = r.damaged("frame %d does not match its sums, and others follow", r.number)
	}
	return nil, false
}

// hasFrame reports whether there is the header of a frame of this file anywhere
// in b. The header is enough: it was written when all before it was on disk.
func (r *metaReader) hasFrame(b []byte) bool {
	stamp := binary.BigEndian.AppendUint64(nil, r.stamp)
	for {
		i := bytes.Index(b, stamp)
		if i < 0 {
			return false
		}
		if _, ok := parseMetaHeader(b[i:]); ok {
			return true
		}
		b = b[i+1:]
	}
}

// countCells returns the number of cells of a frame, and sets r.err unless they
// are such as save writes. Their sum holds, so what is wrong has been written.
func (r *metaReader) countCells(payload []byte) (n int) {
	var last cellKey
	for b := payload; len(b) > 0; n++ {
		c, size, ok := parseMetaCell(b)
		switch order := last.compare(c.key); {
		case !ok:
			r.err = r.damaged("frame %d, cell %d: %d bytes left, expected %d", r.number, n, len(b), size)
		case n > 0 && order == 0:
			r.err = r.damaged("frame %d: cell %d/%d/%x twice", r.number, c.key.kind, c.key.page, c.key.id)
		case n > 0 && order > 0:
			r.err = r.damaged("frame %d: cell %d/%d/%x out of order", r.number, c.key.kind, c.key.page, c.key.id)
		case c.value == nil && r.number == 0:
			r.err = r.damaged("frame %d: cell %d/%d/%x without a value", r.number, c.key.kind, c.key.page, c.key.id)
		}
		if r.err != nil {
			return n
		}
		last, b = c.key, b[size:]
	}
	return n
}

// parseMetaCell returns the cell at the start of b, and how many bytes it takes;
// it is not ok if b has fewer.
func parseMetaCell(b []byte) (c cell, size int, ok bool) {
	if len(b) < metaCell {
		return c, metaCell, false
	}
	c.key = cellKey{kind: cellKind(b[0]), page: b[1], id: [20]byte(b[2:])}
	length := binary.BigEndian.Uint32(b[22:])
	if length == metaNoValue {
		return c, metaCell, true
	}
	if size = metaCell + int(length); size > len(b) {
		return c, size, false
	}
	c.value = b[metaCell:size:size]
	return c, size, true
}

func appendMetaCells(cells []cell, payload []byte) []cell {
	for len(payload) > 0 {
		c, size, _ := parseMetaCell(payload) // countCells has checked it
		cells, payload = append(cells, c), payload[size:]
	}
	return cells
}
