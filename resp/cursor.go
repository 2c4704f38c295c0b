package resp

import (
	"bytes"
	"encoding/binary"
	"math"
	"strconv"

	"github.com/slotmesh/slotmesh/store"
)

const errCursor Error = "ERR invalid cursor"

// onePage is the number of members up to which a collection comes in one page,
// whatever the COUNT and the cursor: Redis answers so for what it keeps in a
// compact form.
const onePage = 128

// memberScan are what follows the cursor of a scan.
type memberScan struct {
	pattern string
	all     bool // the pattern lets everything through
	count   int
}

// parseCursor reads a cursor as C's strtoul does, all of it: a sign is allowed,
// and the empty text is 0.
func parseCursor(arg []byte) (uint64, error) {
	if i := bytes.IndexByte(arg, 0); i >= 0 {
		arg = arg[:i]
	}
	if len(arg) == 0 {
		return 0, nil
	}
	digits := arg
	if arg[0] == '-' || arg[0] == '+' {
		digits = arg[1:]
	}
	if len(digits) == 0 || digits[0] < '0' || digits[0] > '9' {
		return 0, errCursor
	}
	n, err := strconv.ParseUint(view(digits), 10, 64)
	if err != nil {
		return 0, errCursor
	}
	if arg[0] == '-' {
		n = -n
	}
	return n, nil
}

// parseMemberScan reads the options in args from from on.
func parseMemberScan(args [][]byte, from int) (memberScan, error) {
	o := memberScan{all: true, count: 10}
	for i := from; i < len(args); i += 2 {
		if i+1 == len(args) {
			return o, errSyntax
		}
		value := args[i+1]
		switch {
		case equalFold(args[i], "count"):
			n, ok := parseInt(value)
			if !ok {
				return o, errNotInteger
			}
			if n < 1 {
				return o, errSyntax
			}
			o.count = int(min(n, math.MaxInt32))
		case equalFold(args[i], "match"):
			o.pattern, o.all = string(value), len(value) == 1 && value[0] == '*'
		default:
			return o, errSyntax
		}
	}
	return o, nil
}

// matches reports whether MATCH lets a name through.
func (o *memberScan) matches(name string) bool { return o.all || globMatch(o.pattern, name) }

// scan calls f with a page of members, and returns the cursor of the next one, 0
// at the end. A cursor is the sum (see summedField) of the first member that has
// not been returned. Members of equal sums come in one page; so a sum behind it
// is larger than 0, and each page gets further.
func (k *collection) scan(cursor uint64, limit int, f func(*store.Item)) (next uint64, err error) {
	if k.count <= onePage {
		cursor, limit = 0, onePage
	}
	if k.count == 0 || cursor > math.MaxUint32 {
		return 0, nil
	}
	from := binary.BigEndian.AppendUint32([]byte{k.prefix()}, uint32(cursor))
	n, last := 0, uint32(0)
	err = k.eachFrom(string(from), min(limit, k.count)+1, func(it *store.Item) bool {
		sum := sumOf(it.Field)
		if n >= limit && sum != last {
			next = uint64(sum)
			return false
		}
		f(it)
		n, last = n+1, sum
		return true
	})
	return next, err
}

// scanCommand is HSCAN, SSCAN or ZSCAN: f appends what is shown of a member, each
// member parts replies.
func scanCommand(c *Call, kind byte, parts int, f func(*collection, *Reply, *store.Item)) error {
	cursor, err := parseCursor(c.Args[2])
	if err != nil {
		return err
	}
	k, err := c.collection(c.Key(1), kind)
	if err != nil {
		return err
	}
	if k.count == 0 {
		c.Reply.Array(2)
		c.Reply.BulkString("0")
		c.Reply.Array(0)
		return nil
	}
	o, err := parseMemberScan(c.Args, 3)
	if err != nil {
		return err
	}
	var found []store.Item
	next, err := k.scan(cursor, o.count, func(it *store.Item) {
		if o.matches(memberOf(it.Field)) {
			found = append(found, *it)
		}
	})
	if err != nil {
		return err
	}
	c.Reply.Array(2)
	c.Reply.BulkString(strconv.FormatUint(next, 10))
	c.Reply.Array(parts * len(found))
	for i := range found {
		f(&k, c.Reply, &found[i])
	}
	return nil
}
