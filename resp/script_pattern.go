package resp

import (
	"strings"

	lua "github.com/yuin/gopher-lua"
)

// The functions of Lua's library string that take patterns. The interpreter's own
// cannot be stopped: a pattern of a few bytes may keep it busy for years, and its
// slot locked.

const (
	patternCaptures = 32
	patternNested   = 10_000  // items of a pattern that wait for each other; more is an error of the script
	patternSteps    = 1 << 12 // between looks whether the script has been stopped
)

// Lengths of a capture that are none.
const (
	captureOpen     = -1
	capturePosition = -2
)

// matcher matches one text against one pattern, which ends at a zero byte.
type matcher struct {
	L         *lua.LState
	text, pat string
	level     int // captures that have begun
	captures  [patternCaptures]struct{ start, length int }
	nested    int
	steps     int
}

// openPatterns replaces the functions that take patterns.
func (vm *interpreter) openPatterns() {
	L := vm.state
	s := L.G.Global.RawGetString("string").(*lua.LTable)
	for name, f := range map[string]lua.LGFunction{
		"find":   func(L *lua.LState) int { return luaFind(L, true) },
		"match":  func(L *lua.LState) int { return luaFind(L, false) },
		"gmatch": luaGMatch,
		"gsub":   luaGSub,
	} {
		s.RawSetString(name, L.NewFunction(f))
	}
}

func newMatcher(L *lua.LState, text, pat string) *matcher {
	pat, _, _ = strings.Cut(pat, "\x00")
	return &matcher{L: L, text: text, pat: pat}
}

func (m *matcher) fail(text string) { m.L.RaiseError("%s", text) }

// step counts work, and ends it where the script has been stopped.
func (m *matcher) step() {
	if m.steps++; m.steps%patternSteps != 0 {
		return
	}
	if ctx := m.L.Context(); ctx != nil && ctx.Err() != nil {
		m.fail(ctx.Err().Error())
	}
}

// match matches the pattern from p on with the text from s on, and returns where
// the match ends, or -1.
func (m *matcher) match(s, p int) int {
	if m.nested++; m.nested > patternNested {
		m.fail("pattern too complex")
	}
	end := m.items(s, p)
	m.nested--
	return end
}

// items goes through the items of the pattern, until one has several ways to go
// on.
func (m *matcher) items(s, p int) int {
	for p < len(m.pat) {
		m.step()
		switch c := m.pat[p]; {
		case c == '(' && p+1 < len(m.pat) && m.pat[p+1] == ')':
			return m.open(s, p+2, capturePosition)
		case c == '(':
			return m.open(s, p+1, captureOpen)
		case c == ')':
			return m.close(s, p+1)
		case c == '$' && p+1 == len(m.pat):
			if s == len(m.text) {
				return s
			}
			return -1
		case c == '%' && p+1 < len(m.pat) && m.pat[p+1] == 'b':
			if s = m.balanced(s, p+2); s < 0 {
				return -1
			}
			p += 4
			continue
		case c == '%' && p+1 < len(m.pat) && m.pat[p+1] == 'f':
			end := m.frontier(s, p+2)
			if end < 0 {
				return -1
			}
			p = end
			continue
		case c == '%' && p+1 < len(m.pat) && '0' <= m.pat[p+1] && m.pat[p+1] <= '9':
			if s = m.again(s, m.pat[p+1]); s < 0 {
				return -1
			}
			p += 2
			continue
		}
		end := m.itemEnd(p)
		next := byte(0)
		if end < len(m.pat) {
			next = m.pat[end]
		}
		fits := s < len(m.text) && m.fits(m.text[s], p, end)
		switch next {
		case '?':
			if fits {
				if r := m.match(s+1, end+1); r >= 0 {
					return r
				}
			}
			p = end + 1
		case '*':
			return m.most(s, p, end, 0)
		case '+':
			if !fits {
				return -1
			}
			return m.most(s, p, end, 1)
		case '-':
			return m.least(s, p, end)
		default:
			if !fits {
				return -1
			}
			s, p = s+1, end
		}
	}
	return s
}

// itemEnd is where the single item at p ends.
func (m *matcher) itemEnd(p int) int {
	c := m.pat[p]
	p++
	switch c {
	case '%':
		if p == len(m.pat) {
			m.fail("malformed pattern (ends with '%')")
		}
		return p + 1
	case '[':
		if p < len(m.pat) && m.pat[p] == '^' {
			p++
		}
		for first := true; first || m.at(p) != ']'; first = false { // a ']' that comes first is one of the set
			if m.at(p) == '%' {
				p++
				m.at(p)
			}
			p++
		}
		return p + 1
	}
	return p
}

// at is a byte of a set, which must not end before its ']'.
func (m *matcher) at(p int) byte {
	if p >= len(m.pat) {
		m.fail("malformed pattern (missing ']')")
	}
	return m.pat[p]
}

// fits reports whether a byte is one of the item between p and end.
func (m *matcher) fits(b byte, p, end int) bool {
	switch c := m.pat[p]; c {
	case '.':
		return true
	case '%':
		return inClass(b, m.pat[p+1])
	case '[':
		return m.inSet(b, p, end-1)
	default:
		return b == c
	}
}

// inSet reports whether a byte is in the set from p to its ']' at last.
func (m *matcher) inSet(b byte, p, last int) bool {
	in := true
	if p++; m.pat[p] == '^' {
		in = false
		p++
	}
	for ; p < last; p++ {
		switch {
		case m.pat[p] == '%':
			if p++; inClass(b, m.pat[p]) {
				return in
			}
		case p+2 < last && m.pat[p+1] == '-':
			if m.pat[p] <= b && b <= m.pat[p+2] {
				return in
			}
			p += 2
		case m.pat[p] == b:
			return in
		}
	}
	return !in
}

// inClass reports whether a byte is of the class that a letter names, as in C's
// own locale; a capital letter names all other bytes, and what is no class stands
// for itself.
func inClass(b, class byte) bool {
	lower, upper, digit := 'a' <= b && b <= 'z', 'A' <= b && b <= 'Z', '0' <= b && b <= '9'
	var in bool
	switch class | 0x20 {
	case 'a':
		in = lower || upper
	case 'c':
		in = b < ' ' || b == 0x7f
	case 'd':
		in = digit
	case 'l':
		in = lower
	case 'p':
		in = '!' <= b && b <= '~' && !lower && !upper && !digit
	case 's':
		in = isSpace(b)
	case 'u':
		in = upper
	case 'w':
		in = lower || upper || digit
	case 'x':
		in = digit || 'a' <= b|0x20 && b|0x20 <= 'f'
	case 'z':
		in = b == 0
	default:
		return b == class
	}
	return in == ('a' <= class)
}

// most matches as many of an item as it can, at least so many, with the rest of
// the pattern behind them.
func (m *matcher) most(s, p, end, least int) int {
	n := 0
	for s+n < len(m.text) && m.fits(m.text[s+n], p, end) {
		n++
		m.step()
	}
	for ; n >= least; n-- {
		if r := m.match(s+n, end+1); r >= 0 {
			return r
		}
	}
	return -1
}

// least matches as few of an item as it can.
func (m *matcher) least(s, p, end int) int {
	for {
		if r := m.match(s, end+1); r >= 0 {
			return r
		}
		if s == len(m.text) || !m.fits(m.text[s], p, end) {
			return -1
		}
		s++
	}
}

// open begins a capture.
func (m *matcher) open(s, p, length int) int {
	if m.level == patternCaptures {
		m.fail("too many captures")
	}
	c := &m.captures[m.level]
	c.start, c.length = s, length
	m.level++
	r := m.match(s, p)
	if r < 0 {
		m.level--
	}
	return r
}

// close ends the capture that began last and has not ended.
func (m *matcher) close(s, p int) int {
	i := m.level - 1
	for i >= 0 && m.captures[i].length != captureOpen {
		i--
	}
	if i < 0 {
		m.fail("invalid pattern capture")
	}
	m.captures[i].length = s - m.captures[i].start
	r := m.match(s, p)
	if r < 0 {
		m.captures[i].length = captureOpen
	}
	return r
}

// balanced matches %bxy, whose two bytes are at p: from an x to the y that
// closes it.
func (m *matcher) balanced(s, p int) int {
	if p+1 >= len(m.pat) {
		m.fail("unbalanced pattern")
	}
	if s == len(m.text) || m.text[s] != m.pat[p] {
		return -1
	}
	for depth := 1; s+1 < len(m.text); {
		m.step()
		switch s++; m.text[s] {
		case m.pat[p+1]:
			if depth--; depth == 0 {
				return s + 1
			}
		case m.pat[p]:
			depth++
		}
	}
	return -1
}

// frontier matches %f[set], whose set is at p: the byte here is in the set and
// the one before is not; the ends of the text count as zero bytes. It returns
// where the set ends.
func (m *matcher) frontier(s, p int) int {
	if p >= len(m.pat) || m.pat[p] != '[' {
		m.fail("missing '[' after '%f' in pattern")
	}
	end := m.itemEnd(p)
	var before, here byte
	if s > 0 {
		before = m.text[s-1]
	}
	if s < len(m.text) {
		here = m.text[s]
	}
	if m.inSet(before, p, end-1) || !m.inSet(here, p, end-1) {
		return -1
	}
	return end
}

// again matches what a capture has matched before.
func (m *matcher) again(s int, digit byte) int {
	i := int(digit) - '1'
	if i < 0 || i >= m.level || m.captures[i].length == captureOpen {
		m.fail("invalid capture index")
	}
	c := m.captures[i]
	if c.length == capturePosition || !strings.HasPrefix(m.text[s:], m.text[c.start:c.start+c.length]) {
		return -1
	}
	return s + c.length
}

// capture is what a capture has matched: a text, or a place. A pattern without
// captures has the whole match as its first.
func (m *matcher) capture(i, start, end int) lua.LValue {
	if i >= m.level {
		if i > 0 {
			m.fail("invalid capture index")
		}
		return luaPiece(m.text, m.text[start:end])
	}
	switch c := m.captures[i]; c.length {
	case capturePosition:
		return lua.LNumber(c.start + 1)
	case captureOpen:
		m.fail("unfinished capture")
		return lua.LNil
	default:
		return luaPiece(m.text, m.text[c.start:c.start+c.length])
	}
}

// push pushes all captures, or the whole match where there are none and whole is
// wanted, and returns how many.
func (m *matcher) push(start, end int, whole bool) int {
	n := m.level
	if n == 0 && whole {
		n = 1
	}
	for i := range n {
		m.L.Push(m.capture(i, start, end))
	}
	return n
}

// from tries to match from s on.
func (m *matcher) from(s, p int) int {
	m.level = 0
	return m.match(s, p)
}

// luaFind is string.find and string.match.
func luaFind(L *lua.LState, find bool) int {
	text, pat := luaStringArg(L, 1), luaStringArg(L, 2)
	m := newMatcher(L, text, pat)
	s := luaInt(float64(L.OptNumber(3, 1)))
	switch {
	case s < 0:
		s = max(0, s+int64(len(text)))
	case s > 0:
		s--
	}
	start := int(min(s, int64(len(text))))
	if find && (lua.LVAsBool(L.Get(4)) || !strings.ContainsAny(pat, "^$*+?.([%-")) {
		i := strings.Index(text[start:], pat)
		if i < 0 {
			L.Push(lua.LNil)
			return 1
		}
		L.Push(lua.LNumber(start + i + 1))
		L.Push(lua.LNumber(start + i + len(pat)))
		return 2
	}
	p := 0
	anchored := strings.HasPrefix(m.pat, "^")
	if anchored {
		p = 1
	}
	for ; start <= len(text); start++ {
		if end := m.from(start, p); end >= 0 {
			if !find {
				return m.push(start, end, true)
			}
			L.Push(lua.LNumber(start + 1))
			L.Push(lua.LNumber(end))
			return 2 + m.push(start, end, false)
		}
		if anchored {
			break
		}
	}
	L.Push(lua.LNil)
	return 1
}

// luaGMatch is string.gmatch: a function that returns one match after the other.
// What it keeps are its upvalues, where they are found to be counted.
func luaGMatch(L *lua.LState) int {
	text, pat := luaStringArg(L, 1), luaStringArg(L, 2)
	L.Push(L.NewClosure(func(L *lua.LState) int {
		text, pat := upvalue(L, 1).(lua.LString), upvalue(L, 2).(lua.LString)
		m := newMatcher(L, string(text), string(pat))
		for start := int(upvalue(L, 3).(lua.LNumber)); start <= len(text); start++ {
			end := m.from(start, 0)
			if end < 0 {
				continue
			}
			at := end
			if end == start {
				at++ // nothing was matched: not again here
			}
			L.Replace(lua.UpvalueIndex(3), lua.LNumber(at))
			return m.push(start, end, true)
		}
		L.Replace(lua.UpvalueIndex(3), lua.LNumber(len(text)+1))
		return 0
	}, lua.LString(text), lua.LString(pat), lua.LNumber(0)))
	return 1
}

func upvalue(L *lua.LState, i int) lua.LValue { return L.Get(lua.UpvalueIndex(i)) }

// luaGSub is string.gsub.
func luaGSub(L *lua.LState) int {
	m := newMatcher(L, luaStringArg(L, 1), luaStringArg(L, 2))
	with := L.Get(3)
	switch with.(type) {
	case lua.LString, lua.LNumber, *lua.LTable, *lua.LFunction:
	default:
		L.RaiseError("bad argument #3 to 'gsub' (string/function/table expected)")
	}
	most := luaInt(float64(L.OptNumber(4, lua.LNumber(len(m.text)+1))))
	p := 0
	anchored := strings.HasPrefix(m.pat, "^")
	if anchored {
		p = 1
	}
	var out []byte
	count, s := int64(0), 0
	for count < most {
		end := m.from(s, p)
		if end >= 0 {
			count++
			out = m.replace(out, with, s, end)
		}
		if end <= s { // nothing, or none: not again here
			if s == len(m.text) {
				break
			}
			out = append(out, m.text[s])
			end = s + 1
		}
		if s = end; anchored {
			break
		}
	}
	out = m.bounded(append(out, m.text[s:]...))
	madeIn(L, len(out))
	L.Push(lua.LString(out))
	L.Push(lua.LNumber(count))
	return 2
}

// replace appends what takes the place of a match.
func (m *matcher) replace(out []byte, with lua.LValue, start, end int) []byte {
	L := m.L
	madeIn(L, 0) // functions that the script gives may call no instruction
	var value lua.LValue
	switch with := with.(type) {
	case *lua.LFunction:
		L.Push(with)
		L.Call(m.push(start, end, true), 1)
		value = L.Get(-1)
		L.Pop(1)
	case *lua.LTable:
		value = L.GetTable(with, m.capture(0, start, end))
	default:
		return m.bounded(m.template(out, luaStringArg(L, 3), start, end))
	}
	switch v := value.(type) {
	case lua.LString:
		out = append(out, v...)
	case lua.LNumber:
		out = append(out, luaText(float64(v))...)
	default:
		if !lua.LVIsFalse(value) {
			m.fail("invalid replacement value (a " + value.Type().String() + ")")
		}
		out = append(out, m.text[start:end]...)
	}
	return m.bounded(out)
}

// template appends a text in which %1 stands for a capture, %0 for the match and
// %% for a percent sign.
func (m *matcher) template(out []byte, text string, start, end int) []byte {
	for {
		i := strings.IndexByte(text, '%')
		if i < 0 {
			return append(out, text...)
		}
		out = append(out, text[:i]...)
		if text = text[i+1:]; text == "" {
			return append(out, 0) // as C, which reads the end of the text
		}
		digit := text[0]
		text = text[1:]
		switch {
		case digit < '0' || digit > '9':
			out = append(out, digit)
		case digit == '0':
			out = append(out, m.text[start:end]...)
		default:
			out = append(out, lua.LVAsString(m.capture(int(digit-'1'), start, end))...)
		}
	}
}

// bounded refuses a result that is too large.
func (m *matcher) bounded(out []byte) []byte {
	if len(out) > luaStringMax {
		m.fail("resulting string too large")
	}
	return out
}
