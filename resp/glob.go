package resp

// globMatch reports whether text matches a pattern, by the rules of KEYS and
// SCAN: '*' is any number of bytes, '?' is one, [a-c^] and [^a-c] are one of a
// class, '\' takes the next byte as it is.
//
// What is not well formed has the meaning that Redis gives it: a class without
// an end reaches to the end of the pattern, a '\' at the end is itself, and no
// pattern but the empty one matches the empty text.
//
// The time is at most the product of both lengths: where the last '*' has run
// out of text, no longer match of an earlier one can help.
func globMatch(pattern, text string) bool { return glob(pattern, text, false) }

// globMatchFold is globMatch with ASCII letters of both cases equal.
func globMatchFold(pattern, text string) bool { return glob(pattern, text, true) }

func glob(pattern, text string, fold bool) bool {
	if len(text) == 0 {
		return len(pattern) == 0
	}
	rest := pattern
	star := ""   // the pattern behind the last '*'
	starAt := -1 // where in the text it was tried
	for at := 0; at < len(text); {
		if len(rest) > 0 && rest[0] == '*' {
			if rest = skipStars(rest); len(rest) == 0 {
				return true
			}
			star, starAt = rest, at
			continue
		}
		if next, ok := globOne(rest, text[at], fold); ok {
			rest = next
			at++
			continue
		}
		if starAt < 0 {
			return false
		}
		starAt++
		rest, at = star, starAt
	}
	return len(skipStars(rest)) == 0
}

func skipStars(p string) string {
	for len(p) > 0 && p[0] == '*' {
		p = p[1:]
	}
	return p
}

// globOne matches the first element of a pattern, which is not '*', with one
// byte, and returns what follows it.
func globOne(p string, b byte, fold bool) (rest string, ok bool) {
	switch {
	case len(p) == 0:
		return "", false
	case p[0] == '?':
		return p[1:], true
	case p[0] == '[':
		return globClass(p[1:], b, fold)
	case p[0] == '\\' && len(p) > 1:
		p = p[1:]
	}
	return p[1:], globLower(p[0], fold) == globLower(b, fold)
}

// globClass matches the class whose '[' comes before p.
func globClass(p string, b byte, fold bool) (rest string, ok bool) {
	not := len(p) > 0 && p[0] == '^'
	if not {
		p = p[1:]
	}
	found := false
	for len(p) > 0 && p[0] != ']' {
		switch {
		case p[0] == '\\' && len(p) > 1:
			found = found || p[1] == b // in either case, as in Redis
			p = p[2:]
		case len(p) > 2 && p[1] == '-':
			found = found || globRange(p[0], p[2], b, fold)
			p = p[3:]
		default:
			found = found || globLower(p[0], fold) == globLower(b, fold)
			p = p[1:]
		}
	}
	if len(p) > 0 {
		p = p[1:]
	}
	return p, found != not
}

// globRange compares bytes as C's signed characters, as Redis does: those above
// 127 come before the others.
func globRange(from, to, b byte, fold bool) bool {
	if int8(from) > int8(to) {
		from, to = to, from
	}
	c := int8(globLower(b, fold))
	return int8(globLower(from, fold)) <= c && c <= int8(globLower(to, fold))
}

func globLower(b byte, fold bool) byte {
	if fold && 'A' <= b && b <= 'Z' {
		return b + 'a' - 'A'
	}
	return b
}
