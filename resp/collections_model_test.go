package resp

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/slotmesh/slotmesh"
	"github.com/slotmesh/slotmesh/internal/racing"
	"github.com/stretchr/testify/require"
)

// Commands on lists and sorted sets of some thousand members, which take several
// pages of the store, against slices.

func bulks(values []string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "*%d\r\n", len(values))
	for _, v := range values {
		fmt.Fprintf(&b, "$%d\r\n%s\r\n", len(v), v)
	}
	return b.String()
}

func TestLongListsAreWhatASliceWouldBe(t *testing.T) {
	racing.OneGoroutine(t)
	r := rand.New(rand.NewPCG(1, 2))
	b := newBench(t)
	var model []string
	value := func() string { return strconv.Itoa(r.IntN(30)) }
	push := func(left bool, n int) {
		words := []string{"RPUSH", "l"}
		if left {
			words[0] = "LPUSH"
		}
		for range n {
			v := value()
			words = append(words, v)
			if left {
				model = slices.Insert(model, 0, v)
			} else {
				model = append(model, v)
			}
		}
		require.Equal(t, fmt.Sprintf(":%d\r\n", len(model)), b.run(words...))
	}
	for round := range 400 {
		if len(model) < 3000 {
			push(r.IntN(2) == 0, 500+r.IntN(1000))
		}
		n := len(model)
		switch r.IntN(6) {
		case 0:
			at := r.IntN(n)
			v, before := model[at], r.IntN(2) == 0
			at = slices.Index(model, v)
			where := "BEFORE"
			if !before {
				where, at = "AFTER", at+1
			}
			model = slices.Insert(model, at, "new")
			b.run("LINSERT", "l", where, v, "new")
		case 1:
			v, count := value(), r.IntN(200)-100
			removed := removeFrom(&model, v, count)
			require.Equal(t, fmt.Sprintf(":%d\r\n", removed), b.run("LREM", "l", strconv.Itoa(count), v))
		case 2:
			from := r.IntN(100)
			to := n - 1 - r.IntN(100)
			if round%10 == 0 {
				from, to = n/3, n/3+r.IntN(n/3)
			}
			model = slices.Clone(model[from : to+1])
			b.run("LTRIM", "l", strconv.Itoa(from), strconv.Itoa(to))
		case 3:
			count := 1 + r.IntN(50)
			require.Equal(t, bulks(model[:count]), b.run("LPOP", "l", strconv.Itoa(count)))
			model = slices.Clone(model[count:])
		case 4:
			v := value()
			var want []string
			for i := n - 1; i >= 0; i-- {
				if model[i] == v {
					want = append(want, fmt.Sprintf(":%d\r\n", i))
				}
			}
			require.Equal(t, fmt.Sprintf("*%d\r\n%s", len(want), strings.Join(want, "")), b.run("LPOS", "l", v, "RANK", "-1", "COUNT", "0"))
		case 5:
			b.run("LMOVE", "l", "l", "LEFT", "RIGHT")
			model = append(slices.Clone(model[1:]), model[0])
		}
		require.True(t, bulks(model) == b.run("LRANGE l 0 -1"), "round %d: the list is not what the slice is", round)
		if i := r.IntN(max(1, len(model))); i < len(model) {
			require.Equal(t, fmt.Sprintf("$%d\r\n%s\r\n", len(model[i]), model[i]), b.run("LINDEX", "l", strconv.Itoa(i-len(model))))
		}
	}
}

// removeFrom is LREM on a slice.
func removeFrom(model *[]string, v string, count int) (removed int) {
	if count < 0 {
		slices.Reverse(*model)
		defer func() { slices.Reverse(*model) }()
		count = -count
	}
	*model = slices.DeleteFunc(*model, func(s string) bool {
		if s != v || count > 0 && removed == count {
			return false
		}
		removed++
		return true
	})
	return removed
}

// rankedModel is a sorted set as a map and a slice.
type rankedModel map[string]float64

func (m rankedModel) members(keep func(string, float64) bool) []string {
	var names []string
	for n, s := range m {
		if keep(n, s) {
			names = append(names, n)
		}
	}
	slices.SortFunc(names, func(a, b string) int { return cmp.Or(cmp.Compare(m[a], m[b]), cmp.Compare(a, b)) })
	return names
}

func everyMember(string, float64) bool { return true }

func TestLargeSortedSetsAreWhatASliceWouldBe(t *testing.T) {
	racing.OneGoroutine(t)
	r := rand.New(rand.NewPCG(3, 4))
	b := newBench(t)
	m := rankedModel{}
	for round := range 120 {
		for len(m) < 2500 {
			words := []string{"ZADD", "z"}
			for range 500 {
				name, score := fmt.Sprintf("m%d", r.IntN(20000)), float64(r.IntN(400)-200)
				words = append(words, strconv.FormatFloat(score, 'g', -1, 64), name)
				m[name] = score
			}
			b.run(words...)
		}
		all := m.members(everyMember)
		low := float64(r.IntN(400) - 200)
		high := low + float64(r.IntN(100))
		between := m.members(func(_ string, s float64) bool { return s >= low && s < high })
		min, max := fmt.Sprint(low), fmt.Sprintf("(%v", high)
		require.Equal(t, fmt.Sprintf(":%d\r\n", len(between)), b.run("ZCOUNT", "z", min, max))
		require.Equal(t, bulks(between), b.run("ZRANGE", "z", min, max, "BYSCORE"))
		slices.Reverse(between)
		require.Equal(t, bulks(between), b.run("ZREVRANGEBYSCORE", "z", max, min))
		if len(between) > 10 {
			require.Equal(t, bulks(between[3:8]), b.run("ZREVRANGEBYSCORE", "z", max, min, "LIMIT", "3", "5"))
		}
		i := r.IntN(len(all))
		require.Equal(t, fmt.Sprintf(":%d\r\n", i), b.run("ZRANK", "z", all[i]))
		require.Equal(t, fmt.Sprintf(":%d\r\n", len(all)-1-i), b.run("ZREVRANK", "z", all[i]))
		j := i + r.IntN(len(all)-i)
		require.Equal(t, bulks(all[i:j+1]), b.run("ZRANGE", "z", strconv.Itoa(i), strconv.Itoa(j)))
		switch r.IntN(5) {
		case 0:
			b.run("ZREMRANGEBYSCORE", "z", min, max)
			for _, n := range between {
				delete(m, n)
			}
		case 1: // most of it at times
			b.run("ZREMRANGEBYRANK", "z", strconv.Itoa(i), strconv.Itoa(j))
			for _, n := range all[i : j+1] {
				delete(m, n)
			}
		case 2:
			require.Equal(t, fmt.Sprintf("*%d\r\n", 2*50), b.run("ZPOPMAX", "z", "50")[:len("*100\r\n")])
			for _, n := range all[len(all)-50:] {
				delete(m, n)
			}
		case 3:
			b.run("ZINCRBY", "z", "1000", all[i])
			m[all[i]] += 1000
		case 4:
			b.run("ZREM", "z", all[0], all[len(all)-1], all[i])
			delete(m, all[0])
			delete(m, all[len(all)-1])
			delete(m, all[i])
		}
		require.True(t, bulks(m.members(everyMember)) == b.run("ZRANGE z 0 -1"), "round %d: the sorted set is not what the slice is", round)
		require.Equal(t, fmt.Sprintf(":%d\r\n", len(m)), b.run("ZCARD z"))
	}
}

func TestScoreKeysKeepTheOrderOfScores(t *testing.T) {
	scores := []float64{math.Inf(-1), -math.MaxFloat64, -1e10, -2, -1, -0.5, -math.SmallestNonzeroFloat64, 0,
		math.SmallestNonzeroFloat64, 1e-300, 0.5, 1, math.Nextafter(1, 2), 2, 1e10, math.MaxFloat64, math.Inf(1)}
	for i, s := range scores {
		if got := keyScore(scoreKey(s)); got != s {
			t.Errorf("keyScore(scoreKey(%v)) = %v", s, got)
		}
		if i > 0 && scoreKey(scores[i-1]) >= scoreKey(s) {
			t.Errorf("scoreKey(%v) is not less than scoreKey(%v)", scores[i-1], s)
		}
	}
	if scoreKey(math.Copysign(0, -1)) != scoreKey(0) {
		t.Error("-0 and 0 are not one score")
	}
}

// Names and values are any bytes, the empty one among them.
func TestNamesAndValuesAreAnyBytes(t *testing.T) {
	names := []string{"", "\x00", "\x00\x00", "\r\n", "\xff\xff", "m", "s", "\x01"}
	b := newBench(t)
	for _, n := range names {
		require.Equal(t, ":1\r\n", b.run("HSET", "h", n, n), "%q", n)
		require.Equal(t, ":1\r\n", b.run("SADD", "s", n), "%q", n)
		require.Equal(t, ":1\r\n", b.run("ZADD", "z", "0", n), "%q", n)
		b.run("RPUSH", "l", n)
	}
	sorted := slices.Sorted(slices.Values(names))
	require.Equal(t, bulks(names), b.run("LRANGE l 0 -1"))
	require.Equal(t, bulks(sorted), b.run("ZRANGE z 0 -1"))
	require.Equal(t, bulks(sorted), b.run("ZRANGE z - + BYLEX"))
	require.Equal(t, sorted, slices.Sorted(slices.Values(elements(t, b.run("SMEMBERS s")))))
	for i, n := range sorted {
		require.Equal(t, bulks([]string{n}), b.run("HMGET", "h", n), "%q", n)
		require.Equal(t, ":1\r\n", b.run("SISMEMBER", "s", n), "%q", n)
		require.Equal(t, fmt.Sprintf(":%d\r\n", i), b.run("ZRANK", "z", n), "%q", n)
		require.Equal(t, bulks(sorted[i+1:]), b.run("ZRANGEBYLEX", "z", "("+n, "+"), "%q", n)
	}
	for _, n := range names {
		require.Equal(t, ":1\r\n", b.run("HDEL", "h", n), "%q", n)
		require.Equal(t, ":1\r\n", b.run("SREM", "s", n), "%q", n)
		require.Equal(t, ":1\r\n", b.run("ZREM", "z", n), "%q", n)
		require.Equal(t, ":1\r\n", b.run("LREM", "l", "1", n), "%q", n)
	}
	for _, key := range []string{"h", "s", "z", "l"} {
		_, found := b.entry(key)
		require.False(t, found, "%s: a collection without members is there", key)
	}
}

// entry is the head of a key: when it expires, and whether it is there.
func (b *bench) entry(key string) (expireAt int64, found bool) {
	b.t.Helper()
	err := b.node.Execute(context.Background(), slotmesh.Request{Name: "entry", ReadOnly: true, Keys: []string{key}}, func(tx *slotmesh.Tx) error {
		e, there, err := tx.Entry(key)
		expireAt, found = e.ExpireAt, there
		return err
	})
	require.NoError(b.t, err)
	return expireAt, found
}

func (b *bench) expire(key string, at time.Time) {
	b.t.Helper()
	err := b.node.Execute(context.Background(), slotmesh.Request{Name: "expire", Keys: []string{key}}, func(tx *slotmesh.Tx) error {
		_, err := tx.Expire(key, at)
		return err
	})
	require.NoError(b.t, err)
}

// A key keeps its time whatever happens to its members, and loses it where it is
// made anew.
func TestCollectionsKeepTheirTime(t *testing.T) {
	at := time.Now().Add(time.Hour)
	b := newBench(t)
	fill := [][2]string{{"HSET h a 1 b 2 c 3", ":3\r\n"}, {"SADD s a b c", ":3\r\n"}, {"ZADD z 1 a 2 b 3 c 4 d", ":4\r\n"}, {"RPUSH l a b c d", ":4\r\n"}}
	for _, test := range []struct {
		words []string
		keeps bool
	}{
		{strings.Fields("HSET h new 1"), true}, {strings.Fields("HDEL h a"), true}, {strings.Fields("HINCRBY h n 1"), true},
		{strings.Fields("SADD s new"), true}, {strings.Fields("SREM s a"), true}, {strings.Fields("SPOP s 2"), true},
		{strings.Fields("ZADD z 1 new"), true}, {strings.Fields("ZREM z a"), true}, {strings.Fields("ZREMRANGEBYRANK z 0 2"), true}, {strings.Fields("ZPOPMIN z"), true},
		{strings.Fields("LPUSH l new"), true}, {strings.Fields("LTRIM l 0 0"), true}, {strings.Fields("LPOP l 3"), true}, {strings.Fields("LREM l 0 a"), true}, {strings.Fields("LINSERT l BEFORE b x"), true},
		{strings.Fields("LMOVE l l LEFT RIGHT"), true},
		{strings.Fields("SUNIONSTORE s s"), false}, {strings.Fields("ZUNIONSTORE z 1 z"), false}, {strings.Fields("ZRANGESTORE z z 0 -1"), false},
	} {
		t.Run(test.words[0], func(t *testing.T) {
			b.check(fill...)
			key := test.words[1]
			b.expire(key, at)
			reply := b.run(test.words...)
			require.NotEqual(t, byte('-'), reply[0], reply)
			got, found := b.entry(key)
			require.True(t, found)
			if want := at.UnixMilli(); test.keeps && got != want || !test.keeps && got != 0 {
				t.Errorf("%v: expires at %d, want %d where it keeps its time (%v)", test.words, got, want, test.keeps)
			}
			b.deleteKeys(fill)
		})
	}
}

// What has expired is not there, and nothing of it shows under what comes anew.
func TestExpiredCollectionsAreEmpty(t *testing.T) {
	b := newBench(t)
	fill := [][2]string{{"HSET h a 1 b 2", ":2\r\n"}, {"SADD s a b", ":2\r\n"}, {"ZADD z 1 a 2 b", ":2\r\n"}, {"RPUSH l a b", ":2\r\n"}}
	for range 2 {
		b.check(fill...)
		for _, key := range []string{"h", "s", "z", "l"} {
			b.expire(key, time.UnixMilli(1))
		}
		b.check([][2]string{{"HGETALL h", "*0\r\n"}, {"SMEMBERS s", "*0\r\n"}, {"ZRANGE z 0 -1", "*0\r\n"}, {"LRANGE l 0 -1", "*0\r\n"},
			{"HGET h a", "$-1\r\n"}, {"SISMEMBER s a", ":0\r\n"}, {"ZSCORE z a", "$-1\r\n"}, {"ZRANK z b", "$-1\r\n"}, {"LINDEX l 0", "$-1\r\n"}, {"LPUSHX l a", ":0\r\n"}}...)
	}
	b.check([][2]string{{"HSET h c 3", ":1\r\n"}, {"HGETALL h", "*2\r\n$1\r\nc\r\n$1\r\n3\r\n"}, {"ZADD z 5 c", ":1\r\n"}, {"ZRANGE z 0 -1", "*1\r\n$1\r\nc\r\n"}, {"RPUSH l c", ":1\r\n"}, {"LRANGE l 0 -1", "*1\r\n$1\r\nc\r\n"}}...)
}
