package rdb

import (
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// widths are integers at the edges of every width of a ziplist and a listpack.
var widths = []any{0, 12, 13, -1, 127, 128, -128, -129, 4095, -4096, 4096, 32767, -32768, 32768, 8388607, -8388608, 8388608,
	math.MaxInt32, math.MinInt32, int64(math.MaxInt32 + 1), int64(math.MaxInt64), int64(math.MinInt64)}

func widthTexts() []string {
	return []string{"0", "12", "13", "-1", "127", "128", "-128", "-129", "4095", "-4096", "4096", "32767", "-32768", "32768", "8388607",
		"-8388608", "8388608", "2147483647", "-2147483648", "2147483648", "9223372036854775807", "-9223372036854775808"}
}

// wellFormed are payloads in encodings that Redis 7.0 reads but does not write,
// or writes only in cases that are hard to come by.
func wellFormed() map[string]struct {
	payload []byte
	want    Value
} {
	type row = struct {
		payload []byte
		want    Value
	}
	long := []any{"", xs(63), xs(64), xs(251), xs(252), xs(253), xs(16383), xs(16384), "end"}
	longTexts := []string{"", xs(63), xs(64), xs(251), xs(252), xs(253), xs(16383), xs(16384), "end"}
	return map[string]row{
		"list of every encoding of a string": {payload(raw(typeList), length(5), rstr("a"), raw(0xC0, 0x80), raw(0xC1, 0x34, 0x12), raw(0xC2, 0, 0, 0, 0x80), lzfString([]byte("xxxxxxxxxxxxxxxx"))),
			list("a", "-128", "4660", "-2147483648", "xxxxxxxxxxxxxxxx")},
		"lengths longer than they need to be": {payload(raw(typeList, 0x80, 0, 0, 0, 2, 0x40, 1, 'a', 0x81, 0, 0, 0, 0, 0, 0, 0, 1, 'b')), list("a", "b")},
		"zset with scores as text": {payload(raw(typeZset), length(6), rstr("a"), short("1"), rstr("b"), short("-2.5"), rstr("c"), raw(scorePlusInf),
			rstr("d"), raw(scoreMinusInf), rstr("e"), short("1.0000000000000001e+20"), rstr("f"), short("inf")),
			zset("a", 1.0, "b", -2.5, "c", math.Inf(1), "d", math.Inf(-1), "e", 1.0000000000000001e20, "f", math.Inf(1))},
		"zset with minus zero": {payload(raw(typeZset2), length(1), rstr("a"), double(math.Copysign(0, -1))), zset("a", math.Copysign(0, -1))},

		"list ziplist of integers":          {payload(raw(typeListZiplist), rbytes(zl(widths...))), list(widthTexts()...)},
		"list ziplist of long entries":      {payload(raw(typeListZiplist), rbytes(zl(long...))), list(longTexts...)},
		"list ziplist in LZF":               {payload(raw(typeListZiplist), lzfString(zl("aaaaaaaaaaaaaaaaaaaaaaa", 7, "aaaaaaaaaaaaaaaaaaaaaaa"))), list("aaaaaaaaaaaaaaaaaaaaaaa", "7", "aaaaaaaaaaaaaaaaaaaaaaa")},
		"list ziplist of unknown count":     {payload(raw(typeListZiplist), rbytes(patch(zl("a", "b"), 8, 0xFF, 0xFF))), list("a", "b")},
		"hash ziplist":                      {payload(raw(typeHashZiplist), rbytes(zl("f", 1, "", "v", 2, 3))), hash("f", "1", "", "v", "2", "3")},
		"zset ziplist":                      {payload(raw(typeZsetZiplist), rbytes(zl("a", 1, 2, "2.5", "c", "inf", "d", "-inf"))), zset("a", 1.0, "2", 2.5, "c", math.Inf(1), "d", math.Inf(-1))},
		"hash zipmap":                       {payload(raw(typeHashZipmap), rbytes(zm("a", "1", "", "", "long", xs(300), xs(254), "x"))), hash("a", "1", "", "", "long", xs(300), xs(254), "x")},
		"hash zipmap of many":               {payload(raw(typeHashZipmap), rbytes(zm(interleave(numbered(300, "f%d"), numbered(300, "v%d"))...))), hash(interleave(numbered(300, "f%d"), numbered(300, "v%d"))...)},
		"quicklist":                         {payload(raw(typeListQuicklist), length(2), rbytes(zl("a", 1)), lzfString(zl("bbbbbbbbbbbbbbbbbbbbbb"))), list("a", "1", "bbbbbbbbbbbbbbbbbbbbbb")},
		"quicklist with an empty node":      {payload(raw(typeListQuicklist), length(3), rbytes(zl("a")), rbytes(zl()), rbytes(zl("b"))), list("a", "b")},
		"quicklist 2 of both kinds":         {payload(raw(typeListQuicklist2), length(3), length(nodePlain), rstr("big"), length(nodePacked), rbytes(lp("a", 1)), length(nodePlain), raw(0xC0, 7)), list("big", "a", "1", "7")},
		"quicklist 2 with an empty node":    {payload(raw(typeListQuicklist2), length(2), length(nodePacked), rbytes(lp()), length(nodePacked), rbytes(lp("b"))), list("b")},
		"list listpack of integers":         {payload(raw(typeListQuicklist2), length(1), length(nodePacked), rbytes(lp(widths...))), list(widthTexts()...)},
		"list listpack of long entries":     {payload(raw(typeListQuicklist2), length(1), length(nodePacked), rbytes(lp(long...))), list(longTexts...)},
		"listpack of unknown count":         {payload(raw(typeHashListpack), rbytes(pack(countUnknown, lpEntryOf("a"), lpEntryOf(1)))), hash("a", "1")},
		"listpack with wide small integers": {payload(raw(typeHashListpack), rbytes(pack(2, withBackLength(raw(lpInt64, 1, 0, 0, 0, 0, 0, 0, 0)), withBackLength(raw(lpStr32, 1, 0, 0, 0, 'v'))))), hash("1", "v")},
		"zset listpack in any order":        {payload(raw(typeZsetListpack), rbytes(lp("b", 2, "a", "1.5"))), zset("b", 2.0, "a", 1.5)},
		"set listpack":                      {payload(raw(typeSetListpack), rbytes(lp("a", 1, -1, "", "b"))), set("a", "1", "-1", "", "b")},
		"set listpack in LZF":               {payload(raw(typeSetListpack), lzfString(lp("aaaaaaaaaaaaaaaaaaaaaaaaaaaa", 1))), set("aaaaaaaaaaaaaaaaaaaaaaaaaaaa", "1")},
		"intset wider than it needs to be":  {payload(raw(typeSetIntset), rbytes(is(8, -1, 0, 1))), set("-1", "0", "1")},
		"intset of many":                    {payload(raw(typeSetIntset), rbytes(is(2, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10))), set(numbered(10, "%d")...)},
	}
}

// patch overwrites bytes of b.
func patch(b []byte, at int, with ...byte) []byte {
	b = slices.Clone(b)
	copy(b[at:], with)
	return b
}

func TestEncodingsOfAnyAgeAreRead(t *testing.T) {
	for name, row := range wellFormed() {
		got, err := Parse(row.payload, Limits{})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if diff := difference(&got, &row.want); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

// malformed are payloads with a right footer, and why they are refused.
func malformed() map[string]struct {
	payload []byte
	reason  error
	offset  int
	text    string
} {
	type row = struct {
		payload []byte
		reason  error
		offset  int
		text    string
	}
	// Both stand behind the type and a length of one byte.
	inString := func(code byte, b []byte) []byte { return payload(raw(code), rbytes(b)) }
	const start = 2
	ziplist, listpack := zl("a", "b"), lp("a", "b")
	return map[string]row{
		"no type":                     {payload(), ErrFormat, 0, "the type needs 1 byte, 0 are left"},
		"unknown type":                {payload(raw(22)), ErrFormat, 0, "type 22 is not known"},
		"unassigned type":             {payload(raw(8)), ErrFormat, 0, "type 8 is not known"},
		"module":                      {payload(raw(typeModule)), ErrUnsupported, 0, "type 7 is a value of a module"},
		"old module":                  {payload(raw(typeModulePreGA)), ErrUnsupported, 0, "type 6 is a value of a module"},
		"stream":                      {payload(raw(typeStream)), ErrUnsupported, 0, "type 15 is a stream"},
		"stream of 7.0":               {payload(raw(typeStream2)), ErrUnsupported, 0, "type 19 is a stream"},
		"stream of 7.2":               {payload(raw(typeStream3)), ErrUnsupported, 0, "type 21 is a stream"},
		"bytes after the value":       {payload(raw(typeString), rstr("a"), raw(1, 2)), ErrFormat, 3, "2 bytes follow the value"},
		"string cut":                  {payload(raw(typeString, 5, 'a')), ErrFormat, 2, "a string needs 5 bytes, 1 are left"},
		"string without length":       {payload(raw(typeString)), ErrFormat, 1, "a string needs 1 byte"},
		"length of 14 bits cut":       {payload(raw(typeString, 0x40)), ErrFormat, 2, "needs 1 byte"},
		"length of 32 bits cut":       {payload(raw(typeString, 0x80, 0, 0)), ErrFormat, 2, "needs 4 bytes, 2 are left"},
		"length of 64 bits cut":       {payload(raw(typeString, 0x81, 0)), ErrFormat, 2, "needs 8 bytes, 1 are left"},
		"length beyond everything":    {payload(raw(typeString, 0x81), repeat(8, 0xFF)), ErrFormat, 10, "a string needs 18446744073709551615 bytes, 0 are left"},
		"no length":                   {payload(raw(typeString, 0x82)), ErrFormat, 1, "begins with 0x82, which begins no length"},
		"unknown encoding":            {payload(raw(typeString, 0xC4)), ErrFormat, 1, "has the unknown encoding 4"},
		"integer cut":                 {payload(raw(typeString, 0xC2, 0, 0)), ErrFormat, 2, "needs 4 bytes, 2 are left"},
		"count that is a code":        {payload(raw(typeList, 0xC1, 0)), ErrFormat, 1, "the number of elements is the code of an encoding (1)"},
		"count without elements":      {payload(raw(typeList, 3, 0)), ErrFormat, 1, "the number of elements is 3, more than the 1 bytes left can hold"},
		"count of pairs":              {payload(raw(typeHash, 2, 0, 0, 0)), ErrFormat, 1, "the number of fields is 2, more than the 3 bytes left can hold"},
		"last value cut":              {payload(raw(typeHash, 1, 1, 'f')), ErrFormat, 4, "a value needs 1 byte"},
		"empty list":                  {payload(raw(typeList, 0)), ErrFormat, 2, "a list without elements"},
		"empty set":                   {payload(raw(typeSet, 0)), ErrFormat, 2, "a set without members"},
		"empty hash":                  {payload(raw(typeHash, 0)), ErrFormat, 2, "a hash without fields"},
		"empty zset":                  {payload(raw(typeZset2, 0)), ErrFormat, 2, "a zset without members"},
		"empty quicklist":             {payload(raw(typeListQuicklist, 0)), ErrFormat, 2, "a list without elements"},
		"quicklist of empty nodes":    {payload(raw(typeListQuicklist, 1), rbytes(zl())), ErrFormat, 14, "a list without elements"},
		"empty ziplist":               {inString(typeListZiplist, zl()), ErrFormat, 13, "a list without elements"},
		"empty listpack":              {inString(typeHashListpack, lp()), ErrFormat, 9, "a hash without fields"},
		"empty set listpack":          {inString(typeSetListpack, lp()), ErrFormat, 9, "a set without members"},
		"empty intset":                {inString(typeSetIntset, is(2)), ErrFormat, 10, "a set without members"},
		"empty zipmap":                {inString(typeHashZipmap, zm()), ErrFormat, 4, "a hash without fields"},
		"member twice":                {payload(raw(typeSet, 2), rstr("a"), rstr("a")), ErrFormat, 4, `the member "a" comes twice`},
		"member twice as integer":     {payload(raw(typeSet, 2), rstr("7"), raw(0xC0, 7)), ErrFormat, 4, `the member "7" comes twice`},
		"member twice among many":     {payload(raw(typeSet, 40), slices.Concat(rstrs(numbered(39, "m%d"))...), rstr("m3")), ErrFormat, 2 + 9*3 + 30*4, `the member "m3" comes twice`},
		"field twice":                 {payload(raw(typeHash, 2), rstr("a"), rstr("1"), rstr("a"), rstr("2")), ErrFormat, 6, `the field "a" comes twice`},
		"member of a zset twice":      {payload(raw(typeZset2, 2), rstr("a"), double(1), rstr("a"), double(2)), ErrFormat, 12, `the member "a" comes twice`},
		"field of a listpack twice":   {inString(typeHashListpack, lp("a", 1, "a", 2)), ErrFormat, start + 11, `the field "a" comes twice`},
		"integer field twice as text": {inString(typeHashListpack, lp(5, 1, "5", 2)), ErrFormat, start + 10, `the field "5" comes twice`},
		"member of a listpack twice":  {inString(typeSetListpack, lp("a", "a")), ErrFormat, start + 9, `the member "a" comes twice`},
		"zset listpack twice":         {inString(typeZsetListpack, lp("a", 1, "a", 2)), ErrFormat, start + 11, `the member "a" comes twice`},
		"zset ziplist twice":          {inString(typeZsetZiplist, zl("a", 1, "a", 2)), ErrFormat, start + 15, `the member "a" comes twice`},
		"field of a zipmap twice":     {inString(typeHashZipmap, zm("a", "1", "a", "2")), ErrFormat, start + 7, `the field "a" comes twice`},
		"odd listpack":                {inString(typeHashListpack, lp("a", 1, "b")), ErrFormat, start + 15, `the last field, "b", has no value`},
		"odd ziplist":                 {inString(typeZsetZiplist, zl("a", 1, "b")), ErrFormat, start + 19, `the last member, "b", has no score`},
		"NaN":                         {payload(raw(typeZset2, 1), rstr("a"), double(math.NaN())), ErrFormat, 4, `the score of "a" is NaN`},
		"NaN of scores as text":       {payload(raw(typeZset, 1), rstr("a"), raw(scoreNaN)), ErrFormat, 4, `the score of "a" is NaN`},
		"NaN as text":                 {payload(raw(typeZset, 1), rstr("a"), short("nan")), ErrFormat, 4, `the score of "a" is NaN`},
		"NaN in a listpack":           {inString(typeZsetListpack, lp("a", "nan")), ErrFormat, start + 9, `the score of "a" is NaN`},
		"score that is no number":     {inString(typeZsetListpack, lp("a", "1.5x")), ErrFormat, start + 9, `a score is "1.5x", not a number`},
		"score in hex":                {payload(raw(typeZset, 1), rstr("a"), short("0x1p4")), ErrFormat, 4, `a score is "0x1p4", not a number`},
		"empty score":                 {payload(raw(typeZset, 1), rstr("a"), short("")), ErrFormat, 4, `a score is "", not a number`},
		"score cut":                   {payload(raw(typeZset, 1), rstr("a"), raw(9, '1')), ErrFormat, 5, "a score needs 9 bytes, 1 are left"},
		"binary score cut":            {payload(raw(typeZset2, 1), rstr("aaaaa"), raw(0, 0, 0)), ErrFormat, 8, "a score needs 8 bytes, 3 are left"},

		"ziplist of another size":       {inString(typeListZiplist, patch(ziplist, 0, 99)), ErrFormat, start, "a ziplist says it has 99 bytes, it has 17"},
		"ziplist without end":           {inString(typeListZiplist, patch(ziplist, 16, 0)), ErrFormat, start + 16, "a ziplist ends with 0x00, not with 0xff"},
		"ziplist of the head alone":     {inString(typeListZiplist, slices.Concat(le32(10), le32(10), le16(0))), ErrFormat, start + 10, "a ziplist without its end byte"},
		"ziplist of half a head":        {inString(typeListZiplist, raw(6, 0, 0, 0, 10, 0)), ErrFormat, start + 4, "the place of the last entry of a ziplist needs 4 bytes, 2 are left"},
		"ziplist of another count":      {inString(typeListZiplist, patch(ziplist, 8, 3)), ErrFormat, start, "a ziplist says it has 3 entries, it has 2"},
		"ziplist with another tail":     {inString(typeListZiplist, patch(ziplist, 4, 10)), ErrFormat, start, "a ziplist says its last entry is at byte 10, it is at 13"},
		"ziplist with a wrong previous": {inString(typeListZiplist, patch(ziplist, 13, 4)), ErrFormat, start + 13, "the length before an entry is 4, the entry there has 3 bytes"},
		"ziplist that ends early":       {inString(typeListZiplist, patch(ziplist, 13, packedEnd)), ErrFormat, start + 13, "the end byte before the end of a ziplist"},
		"ziplist entry too long":        {inString(typeListZiplist, patch(ziplist, 14, 2)), ErrFormat, start + 15, "an entry of a ziplist needs 2 bytes, 1 are left"},
		"ziplist entry of no kind":      {inString(typeListZiplist, patch(ziplist, 11, 0xC1)), ErrFormat, start + 11, "begins with 0xc1, which begins none"},
		"ziplist where a listpack is":   {inString(typeHashListpack, ziplist), ErrFormat, start + 7, "the length behind an entry is 0, the entry has 1 bytes"},
		"listpack of another size":      {inString(typeHashListpack, patch(listpack, 0, 99)), ErrFormat, start, "a listpack says it has 99 bytes, it has 13"},
		"listpack without end":          {inString(typeHashListpack, patch(listpack, 12, 0)), ErrFormat, start + 12, "a listpack ends with 0x00, not with 0xff"},
		"listpack of another count":     {inString(typeHashListpack, patch(listpack, 4, 3)), ErrFormat, start, "a listpack says it has 3 entries, it has 2"},
		"listpack with a wrong length":  {inString(typeHashListpack, patch(listpack, 8, 3)), ErrFormat, start + 8, "the length behind an entry is 3, the entry has 2 bytes"},
		"listpack with a marked length": {inString(typeHashListpack, patch(listpack, 8, 0x82)), ErrFormat, start + 8, "the length behind an entry is malformed"},
		"listpack entry too long":       {inString(typeHashListpack, patch(listpack, 9, lpStr6|5)), ErrFormat, start + 10, "an entry of a listpack needs 5 bytes, 2 are left"},
		"listpack entry of no kind":     {inString(typeHashListpack, patch(listpack, 6, 0xF5)), ErrFormat, start + 6, "begins with 0xf5, which begins none"},
		"listpack that ends early":      {inString(typeHashListpack, patch(listpack, 6, packedEnd)), ErrFormat, start + 6, "begins with 0xff, which begins none"},
		"listpack as an integer":        {payload(raw(typeHashListpack, 0xC0, 1)), ErrFormat, 1, "the size of a listpack needs 4 bytes, 1 are left (at byte 0 of what the string there holds)"},
		"listpack in LZF":               {payload(raw(typeHashListpack), lzfString(patch(listpack, 4, 3))), ErrFormat, 1, "a listpack says it has 3 entries, it has 2 (at byte 0 of"},
		"intset of no width":            {inString(typeSetIntset, is(3, 1)), ErrFormat, start, "an intset has members of 3 bytes, not 2, 4 or 8"},
		"intset of another count":       {inString(typeSetIntset, patch(is(2, 1, 2), 4, 3)), ErrFormat, start + 4, "an intset says it has 3 members of 2 bytes, it has 4 bytes"},
		"intset not ascending":          {inString(typeSetIntset, is(2, 1, 3, 2)), ErrFormat, start + 12, "a member of an intset, 2, is not above the one before it, 3"},
		"intset with a member twice":    {inString(typeSetIntset, is(4, 1, 1)), ErrFormat, start + 12, "1, is not above the one before it, 1"},
		"zipmap of another count":       {inString(typeHashZipmap, patch(zm("a", "1"), 0, 2)), ErrFormat, start, "a zipmap says it has 2 fields, it has 1"},
		"zipmap without end":            {inString(typeHashZipmap, raw(0)), ErrFormat, start + 1, "a zipmap without its end byte"},
		"zipmap that ends early":        {inString(typeHashZipmap, patch(zm("a", "1"), 1, packedEnd)), ErrFormat, start + 1, "the end byte before the end of a zipmap"},
		"zipmap field too long":         {inString(typeHashZipmap, patch(zm("a", "1"), 1, 9)), ErrFormat, start + 2, "a field of a zipmap needs 9 bytes"},
		"zipmap value too long":         {inString(typeHashZipmap, patch(zm("a", "1"), 3, 9)), ErrFormat, start + 5, "a value of a zipmap needs 9 bytes"},
		"zipmap free bytes too many":    {inString(typeHashZipmap, patch(zm("a", "1"), 4, 9)), ErrFormat, start + 6, "the free bytes of a zipmap needs 9 bytes"},
		"node of neither kind":          {payload(raw(typeListQuicklist2, 1, 3, 1, 'a')), ErrFormat, 2, "the container of a node is 3, neither plain (1) nor packed (2)"},
		"node without bytes":            {payload(raw(typeListQuicklist2, 1, nodePlain, 0)), ErrFormat, 3, "a node is an empty string"},
		"more nodes than bytes":         {payload(raw(typeListQuicklist2, 2, nodePlain, 1, 'a')), ErrFormat, 1, "the number of nodes is 2, more than the 3 bytes left can hold"},
		"LZF that yields less":          {payload(raw(typeString, 0xC3, 2, 9, 0, 'a')), ErrFormat, 1, "a string declares 9 bytes, its LZF yields 1"},
		"LZF that yields more":          {payload(raw(typeString, 0xC3, 2, 0, 0, 'a')), ErrFormat, 1, "a string declares 0 bytes, its LZF yields 1"},
		"LZF cut":                       {payload(raw(typeString, 0xC3, 9, 1, 0, 'a')), ErrFormat, 4, "a string needs 9 bytes, 2 are left"},
		"LZF with a run too long":       {payload(raw(typeString, 0xC3, 2, 2, 1, 'a')), ErrFormat, 4, "a string is no LZF: a literal run goes beyond the end"},
		"LZF with a copy of nothing":    {payload(raw(typeString, 0xC3, 4, 4, 0, 'a', 0x20, 1)), ErrFormat, 6, "a copy reaches back beyond the beginning"},
		"LZF with a length cut":         {payload(raw(typeString, 0xC3, 3, 4, 0, 'a', 0xE0)), ErrFormat, 6, "the end cuts the length of a copy"},
		"LZF with a distance cut":       {payload(raw(typeString, 0xC3, 3, 4, 0, 'a', 0x20)), ErrFormat, 6, "the end cuts the distance of a copy"},
		"LZF whose length is a code":    {payload(raw(typeString, 0xC3, 0xC0, 1)), ErrFormat, 2, "a string is the code of an encoding (0), not a length"},
	}
}

func rstrs(list []string) [][]byte {
	out := make([][]byte, len(list))
	for i, s := range list {
		out[i] = rstr(s)
	}
	return out
}

func TestMalformedPayloadsAreRefusedWithReasonAndPlace(t *testing.T) {
	for name, row := range malformed() {
		v, err := Parse(row.payload, Limits{})
		var e *Error
		if !errors.As(err, &e) {
			t.Errorf("%s: error %v of type %T, want an *Error", name, err, err)
			continue
		}
		if !errors.Is(err, row.reason) || e.Offset != row.offset || !strings.Contains(e.Text, row.text) {
			t.Errorf("%s: %v\nwant %v at byte %d: …%s…", name, err, row.reason, row.offset, row.text)
		}
		if v.Kind != String || v.String != nil {
			t.Errorf("%s: a value beside the error: %v", name, v)
		}
	}
}

func TestEveryPayloadCutShortIsRefused(t *testing.T) {
	for name, row := range wellFormed() {
		body := row.payload[:len(row.payload)-footerLen]
		if len(body) > 2000 {
			continue // the short ones show all there is
		}
		for end := range body {
			if _, err := Parse(payload(body[:end]), Limits{}); !errors.Is(err, ErrFormat) {
				t.Errorf("%s cut to %d of %d bytes: %v", name, end, len(body), err)
			}
		}
	}
}

func TestFooterIsCheckedFirst(t *testing.T) {
	good := payload(raw(typeString), rstr("a"))
	rows := []struct {
		name    string
		payload []byte
		offset  int
		text    string
	}{
		{"nothing", nil, 0, "a payload of 0 bytes has no room for the 10"},
		{"half a footer", good[:9], 0, "a payload of 9 bytes"},
		{"newer version", withFooter(12, raw(typeString, 1, 'a')), 3, "RDB version 12, newer than 11"},
		{"newer version, unchecked", patch(unchecked(raw(typeString, 1, 'a')), 3, 12), 3, "RDB version 12, newer than 11"},
		{"another byte", patch(good, 2, 'b'), 5, "the bytes before it give"},
		{"another version", patch(good, 3, 9), 5, "the bytes before it give"},
		{"another checksum", patch(good, 5, good[5]+1), 5, "the bytes before it give"},
		{"unknown type and another checksum", patch(good, 0, 99), 5, "the bytes before it give"},
	}
	for _, row := range rows {
		_, err := Parse(row.payload, Limits{})
		var e *Error
		if !errors.As(err, &e) || !errors.Is(err, ErrFooter) || e.Offset != row.offset || !strings.Contains(e.Text, row.text) {
			t.Errorf("%s: %v\nwant %v at byte %d: …%s…", row.name, err, ErrFooter, row.offset, row.text)
		}
	}
}

func TestOlderVersionsAreRead(t *testing.T) {
	for version := range uint16(versionRead + 1) {
		v, err := Parse(withFooter(version, raw(typeString, 1, 'a')), Limits{})
		if err != nil || string(v.String) != "a" {
			t.Errorf("version %d: %q, %v", version, v.String, err)
		}
	}
}

func TestAChecksumOfZeroIsNotChecked(t *testing.T) {
	v, err := Parse(unchecked(raw(typeString, 1, 'a')), Limits{})
	require.NoError(t, err)
	require.Equal(t, "a", string(v.String))
}

func TestChecksumIsThatOfRedis(t *testing.T) {
	if got := checksum([]byte("123456789")); got != 0xe9c6d914c4b8d9ca {
		t.Errorf("checksum(123456789) = %016x, want e9c6d914c4b8d9ca", got)
	}
	if got := checksum(nil); got != 0 {
		t.Errorf("checksum of nothing = %016x, want 0", got)
	}
}

func TestErrorsSayReasonPlaceAndCause(t *testing.T) {
	_, err := Parse(payload(raw(typeSet, 2), rstr("a"), rstr("a")), Limits{})
	require.EqualError(t, err, `rdb: bad data format: byte 4: the member "a" comes twice`)
}

func TestAValueOwnsItsMemory(t *testing.T) {
	for name, row := range wellFormed() {
		p := slices.Clone(row.payload)
		got, err := Parse(p, Limits{})
		require.NoError(t, err, name)
		for i := range p {
			p[i] = 0xAA
		}
		for _, b := range slicesOf(&got) {
			_ = append(b, "overrun"...)
		}
		if diff := difference(&got, &row.want); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

// slicesOf returns every slice of bytes of v.
func slicesOf(v *Value) [][]byte {
	out := slices.Concat([][]byte{}, v.List, v.Set)
	if v.Kind == String {
		out = append(out, v.String)
	}
	for _, p := range v.Hash {
		out = append(out, p.Field, p.Value)
	}
	for _, s := range v.SortedSet {
		out = append(out, s.Member)
	}
	return out
}

func TestEmptyStringsAreNotNil(t *testing.T) {
	for name, p := range map[string][]byte{
		"string":        payload(raw(typeString, 0)),
		"LZF":           payload(raw(typeString, 0xC3, 0, 0)),
		"list":          payload(raw(typeList, 1, 0)),
		"hash listpack": payload(raw(typeHashListpack), rbytes(lp("", ""))),
	} {
		v, err := Parse(p, Limits{})
		require.NoError(t, err, name)
		for _, b := range slicesOf(&v) {
			if b == nil {
				t.Errorf("%s: nil", name)
			}
		}
	}
}

func TestLimitsHoldToTheElementAndTheByte(t *testing.T) {
	rows := map[string]struct {
		payload         []byte
		elements, bytes int
	}{
		"string":        {payload(raw(typeString), rstr("abcdef")), 1, 6},
		"integer":       {payload(raw(typeString, 0xC2, 0, 0, 0, 0x80)), 1, 11},
		"list":          {payload(raw(typeList, 3), rstr("a"), rstr("bc"), rstr("")), 3, 3},
		"set":           {payload(raw(typeSet, 2), rstr("a"), rstr("bc")), 2, 3},
		"hash":          {payload(raw(typeHash, 2), rstr("a"), rstr("1"), rstr("b"), rstr("2")), 2, 4},
		"zset":          {payload(raw(typeZset2, 2), rstr("a"), double(1), rstr("b"), double(2)), 2, 2},
		"hash listpack": {payload(raw(typeHashListpack), rbytes(lp("a", 100, "b", 200))), 2, 8},
		"zset listpack": {payload(raw(typeZsetListpack), rbytes(lp("a", 100, "b", 200))), 2, 2},
		"intset":        {payload(raw(typeSetIntset), rbytes(is(2, 1, 2, 3))), 3, 3},
		"quicklist":     {payload(raw(typeListQuicklist, 2), rbytes(zl("a", "b")), rbytes(zl("c"))), 3, 3},
		"plain nodes":   {payload(raw(typeListQuicklist2, 2, nodePlain), rstr("aa"), raw(nodePlain), rstr("bb")), 2, 4},
	}
	for name, row := range rows {
		if _, err := Parse(row.payload, Limits{Elements: row.elements, Bytes: row.bytes}); err != nil {
			t.Errorf("%s at its limits: %v", name, err)
		}
		if _, err := Parse(row.payload, Limits{Bytes: row.bytes - 1}); !errors.Is(err, ErrLimit) {
			t.Errorf("%s with a byte more than allowed: %v", name, err)
		}
		if row.elements == 1 {
			continue
		}
		if _, err := Parse(row.payload, Limits{Elements: row.elements - 1}); !errors.Is(err, ErrLimit) {
			t.Errorf("%s with an element more than allowed: %v", name, err)
		}
	}
}

func TestLimitOfBytesHoldsForAllThatLZFYields(t *testing.T) {
	node := lp(xs(100)) // 110 bytes
	p := payload(raw(typeListQuicklist2, 2, nodePacked), lzfString(node), raw(nodePacked), lzfString(node))
	size := 2 * len(node)
	_, err := Parse(p, Limits{Bytes: size})
	require.NoError(t, err)
	_, err = Parse(p, Limits{Bytes: size - 1})
	require.ErrorIs(t, err, ErrLimit)
}
