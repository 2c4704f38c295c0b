package resp

// Errors of LCS.
const (
	errLCSType      Error = "ERR The specified keys must contain string values"
	errLCSBoth      Error = "ERR If you want both the length and indexes, please just use IDX."
	errLCSTransient Error = "ERR Insufficient memory, transient memory for LCS exceeds proto-max-bulk-len"
)

// lcsOptions are what LCS replies with.
type lcsOptions struct {
	length, ranges, withLength bool
	least                      int64 // shorter ranges are left out
}

func runLCS(c *Call) error {
	a, err := c.lcsValue(1)
	if err != nil {
		return err
	}
	b, err := c.lcsValue(2)
	if err != nil {
		return err
	}
	o, err := c.lcsOptions()
	if err != nil {
		return err
	}
	// Redis holds four bytes for each pair of bytes, and refuses by that. The
	// bound is on the time, too: the slot is locked meanwhile.
	if cells := (int64(len(a)) + 1) * (int64(len(b)) + 1); cells > c.maxString()/4 {
		return errLCSTransient
	}
	t := newLCSTable(a, b, !o.length)
	switch {
	case o.length:
		c.Reply.Int(int64(t.length))
	case o.ranges:
		c.replyLCSRanges(t, &o)
	default:
		c.Reply.Bulk(t.sequence())
	}
	return nil
}

func (c *Call) lcsValue(i int) ([]byte, error) {
	e, found, err := c.Tx.Entry(c.Key(i))
	if err == nil && found && e.Kind != kindString {
		err = errLCSType
	}
	return e.Value, err
}

func (c *Call) lcsOptions() (o lcsOptions, err error) {
	for i := 3; i < len(c.Args); i++ {
		switch {
		case c.Is(i, "idx"):
			o.ranges = true
		case c.Is(i, "len"):
			o.length = true
		case c.Is(i, "withmatchlen"):
			o.withLength = true
		case c.Is(i, "minmatchlen") && i+1 < len(c.Args):
			i++
			if o.least, err = c.Int(i); err != nil {
				return o, err
			}
		default:
			return o, errSyntax
		}
	}
	if o.ranges && o.length {
		return o, errLCSBoth
	}
	return o, nil
}

// lcsTable knows the way back through the longest common subsequence of two
// strings. At a pair of bytes that differ the way goes to the pair before in a,
// or else to the one before in b: one bit, so that the lengths themselves need
// only two rows.
type lcsTable struct {
	a, b   []byte
	length uint32
	upward []uint64 // bit i·len(b)+j: at a[i], b[j] the way goes on before a[i]
}

// newLCSTable compares a with b. Without way only the length is known.
func newLCSTable(a, b []byte, way bool) *lcsTable {
	t := &lcsTable{a: a, b: b}
	if way {
		t.upward = make([]uint64, (len(a)*len(b)+63)/64)
	}
	row, before := make([]uint32, len(b)+1), make([]uint32, len(b)+1)
	for i := range a {
		row, before = before, row
		for j := range b {
			switch {
			case a[i] == b[j]:
				row[j+1] = before[j] + 1
			case before[j+1] > row[j]:
				row[j+1] = before[j+1]
				if way {
					bit := i*len(b) + j
					t.upward[bit/64] |= 1 << (bit % 64)
				}
			default:
				row[j+1] = row[j]
			}
		}
	}
	t.length = row[len(b)]
	return t
}

// walk calls match for each pair of the subsequence, from the last to the first.
func (t *lcsTable) walk(match func(i, j int)) {
	i, j := len(t.a)-1, len(t.b)-1
	for i >= 0 && j >= 0 {
		bit := i*len(t.b) + j
		switch {
		case t.a[i] == t.b[j]:
			match(i, j)
			i, j = i-1, j-1
		case t.upward[bit/64]&(1<<(bit%64)) != 0:
			i--
		default:
			j--
		}
	}
}

func (t *lcsTable) sequence() []byte {
	out := make([]byte, t.length)
	at := len(out)
	t.walk(func(i, _ int) {
		at--
		out[at] = t.a[i]
	})
	return out
}

// lcsRange is a run of bytes that both strings have.
type lcsRange struct{ a, b, length int }

// ranges are the runs of at least so many bytes, from the last to the first.
func (t *lcsTable) ranges(least int64) []lcsRange {
	var all []lcsRange
	t.walk(func(i, j int) {
		if n := len(all) - 1; n >= 0 && all[n].a == i+1 && all[n].b == j+1 {
			all[n] = lcsRange{i, j, all[n].length + 1}
			return
		}
		all = append(all, lcsRange{i, j, 1})
	})
	long := all[:0]
	for _, r := range all {
		if int64(r.length) >= least {
			long = append(long, r)
		}
	}
	return long
}

func (c *Call) replyLCSRanges(t *lcsTable, o *lcsOptions) {
	ranges := t.ranges(o.least)
	c.Reply.Map(2)
	c.Reply.BulkString("matches")
	c.Reply.Array(len(ranges))
	for _, r := range ranges {
		if o.withLength {
			c.Reply.Array(3)
		} else {
			c.Reply.Array(2)
		}
		for _, start := range [...]int{r.a, r.b} {
			c.Reply.Array(2)
			c.Reply.Int(int64(start))
			c.Reply.Int(int64(start + r.length - 1))
		}
		if o.withLength {
			c.Reply.Int(int64(r.length))
		}
	}
	c.Reply.BulkString("len")
	c.Reply.Int(int64(t.length))
}
