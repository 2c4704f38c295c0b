package resp

import (
	"math/big"
	"strconv"
	"strings"
)

// Redis computes INCRBYFLOAT and HINCRBYFLOAT in C's long double, which has 64
// binary digits and an exponent of 15 bits on amd64. A big.Float of so many
// digits gives the same sums; the bounds of the exponent are looked after here.
// On other machines a long double has more digits or fewer, and Redis's own
// results differ.
const (
	longDoubleExp   = 16384      // every long double is below 2 to this power
	longDoubleLeast = -16445     // and every one but 0 at least 2 to this power
	longDoubleChars = 5*1024 - 1 // Redis reads no longer text as a number
)

// parseLongDouble reads a number as C's strtold does, all of it, without spaces
// in front: in decimal, in hexadecimal, or an infinity. What is no number, too
// large or too small is none.
func parseLongDouble(text []byte) (*big.Float, bool) {
	s := string(text)
	if len(s) > longDoubleChars {
		return nil, false
	}
	negative := strings.HasPrefix(s, "-")
	if negative || strings.HasPrefix(s, "+") {
		s = s[1:]
	}
	s = strings.ToLower(s)
	f, ok := parseUnsigned(s)
	if ok && negative {
		f.Neg(f)
	}
	return f, ok
}

func parseUnsigned(s string) (*big.Float, bool) {
	if s == "inf" || s == "infinity" {
		return new(big.Float).SetInf(false), true
	}
	base, mark := 10, "e"
	if strings.HasPrefix(s, "0x") {
		base, mark, s = 16, "p", s[2:]
	}
	s, exponent, marked := strings.Cut(s, mark)
	exp := 0
	if marked {
		var ok bool
		if exp, ok = parseExponent(exponent); !ok {
			return nil, false
		}
	}
	whole, fraction, _ := strings.Cut(s, ".")
	digits := whole + fraction
	if !digitsOf(base, digits) {
		return nil, false
	}
	digits = strings.TrimLeft(digits, "0")
	if digits == "" {
		return newLongDouble(), true
	}
	if base == 16 {
		return hexLongDouble(digits, exp-4*len(fraction))
	}
	return decimalLongDouble(digits, exp-len(fraction))
}

func newLongDouble() *big.Float { return new(big.Float).SetPrec(longDoubleBits) }

// parseExponent reads a power with its sign. What is beyond any long double is
// cut: it stays beyond.
func parseExponent(s string) (int, bool) {
	const beyond = 1 << 20
	digits := strings.TrimLeft(s, "+-")
	if len(s)-len(digits) > 1 || !digitsOf(10, digits) {
		return 0, false
	}
	n, err := strconv.Atoi(s)
	if err != nil {
		n = beyond
		if s[0] == '-' {
			n = -beyond
		}
	}
	return max(-beyond, min(n, beyond)), true
}

// digitsOf reports whether s is digits in lower case, at least one.
func digitsOf(base int, s string) bool {
	const all = "0123456789abcdef"
	return s != "" && strings.Trim(s, all[:base]) == ""
}

// decimalLongDouble is digits·10^exp. It is rounded once, from the exact value.
func decimalLongDouble(digits string, exp int) (*big.Float, bool) {
	if magnitude := len(digits) + exp; magnitude > 4934 || magnitude < -4952 {
		return nil, false // so large a power is not worth its memory
	}
	if len(digits) <= smallDigits && -smallDigits <= exp && exp <= 0 {
		return smallLongDouble(digits, -exp), true
	}
	n, _ := new(big.Int).SetString(digits, 10)
	power := new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(max(exp, -exp))), nil)
	if exp >= 0 {
		return checkLongDouble(newLongDouble().SetInt(n.Mul(n, power)))
	}
	var a, b big.Float // of as many digits as it takes
	return checkLongDouble(newLongDouble().Quo(a.SetInt(n), b.SetInt(power)))
}

// smallDigits is how many decimal digits a long double holds exactly.
const smallDigits = 19

// smallLongDouble is digits/10^places: one division of what is exact, without
// numbers of any length.
func smallLongDouble(digits string, places int) *big.Float {
	n, _ := strconv.ParseUint(digits, 10, 64)
	power := uint64(1)
	for range places {
		power *= 10
	}
	var a, b big.Float
	return newLongDouble().Quo(a.SetUint64(n), b.SetUint64(power))
}

// hexLongDouble is digits·2^exp.
func hexLongDouble(digits string, exp int) (*big.Float, bool) {
	n, _ := new(big.Int).SetString(digits, 16)
	f := newLongDouble().SetInt(n)
	return checkLongDouble(f.SetMantExp(f, exp))
}

// checkLongDouble refuses what a long double cannot hold.
func checkLongDouble(f *big.Float) (*big.Float, bool) {
	exp := f.MantExp(nil) // f is below 2^exp, and at least half of it
	return f, exp <= longDoubleExp && exp >= longDoubleLeast
}

// addLongDouble is a+b, if that is a finite number.
func addLongDouble(a, b *big.Float) (*big.Float, bool) {
	if a.IsInf() || b.IsInf() {
		return nil, false
	}
	sum := newLongDouble().Add(a, b)
	return sum, sum.MantExp(nil) <= longDoubleExp
}
