package compat

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
	_ "unsafe" // for go:linkname

	_ "github.com/redis/go-redis/v9" // links internal/hashtag
	_ "github.com/redis/rueidis"     // links internal/cmds

	"github.com/slotmesh/slotmesh"
)

// The slot functions of both clients are internal. Their names are fixed by the
// versions in go.mod: where an upgrade moves one, linking fails and says so.

//go:linkname goRedisSlot github.com/redis/go-redis/v9/internal/hashtag.Slot
func goRedisSlot(key string) int

//go:linkname rueidisSlot github.com/redis/rueidis/internal/cmds.slot
func rueidisSlot(key string) uint16

func checkSlot(t *testing.T, key string) {
	t.Helper()
	ours := slotmesh.KeySlot(key)
	if b := slotmesh.KeySlotBytes([]byte(key)); b != ours {
		t.Errorf("KeySlotBytes(%q) = %d, KeySlot gives %d", key, b, ours)
	}
	if r := rueidisSlot(key); r != uint16(ours) {
		t.Errorf("KeySlot(%q) = %d, rueidis has %d", key, ours, r)
	}
	// For the empty key go-redis draws a random slot, which says nothing.
	if key == "" {
		return
	}
	if g := goRedisSlot(key); g != int(ours) {
		t.Errorf("KeySlot(%q) = %d, go-redis has %d", key, ours, g)
	}
}

func TestKeySlotAgreesWithClientsOnKnownKeys(t *testing.T) {
	for _, key := range []string{
		"123456789", "user:1000", "user:1001", "article:42", "cart:9", "order:{1000}:items",
		"foo", "", "{}", "foo{}{bar}", "foo{{bar}}zap", "foo{bar}{zap}", "user:{}:profile",
		"A}B{C", "}{a}", "a{'1':{'i32':1}}", "foo{bar}", "bar", "{", "}", "{{", "}}", "{}}", "{{}", "{a}", "{a",
	} {
		checkSlot(t, key)
	}
}

func TestKeySlotAgreesWithClientsOnEveryShortKeyOfBraces(t *testing.T) {
	const alphabet = "{}a\x00"
	key := make([]byte, 0, 8)
	var walk func()
	walk = func() {
		checkSlot(t, string(key))
		if len(key) == cap(key) {
			return
		}
		for i := range len(alphabet) {
			key = append(key, alphabet[i])
			walk()
			key = key[:len(key)-1]
		}
	}
	walk()
}

func TestKeySlotAgreesWithClientsOnRandomKeysOfEveryLength(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for n := range 300 {
		for range 50 {
			key := make([]byte, n)
			for i := range key {
				key[i] = byte(rnd.Uint32()) // any byte, not only text
			}
			checkSlot(t, string(key))
			for range 1 + rnd.IntN(4) {
				if n > 0 {
					key[rnd.IntN(n)] = "{}{}z|"[rnd.IntN(6)] // z and | are the neighbours of {
				}
			}
			checkSlot(t, string(key))
		}
	}
}

// A keyShape is a kind of key: bytes before, in and after a hash tag, or plain
// bytes where tag is negative.
type keyShape struct{ before, tag, after int }

func (s keyShape) String() string {
	if s.tag < 0 {
		return fmt.Sprintf("plain/%d", s.before)
	}
	return fmt.Sprintf("tag/%d{%d}%d", s.before, s.tag, s.after)
}

// keys makes 64 keys of the shape: enough that no branch predictor learns the
// bytes of one, few enough to stay in the cache.
func (s keyShape) keys() []string {
	letters := func(key, n int) string {
		b := make([]byte, n)
		for i := range b {
			b[i] = byte('a' + (31*key+7*i)%26)
		}
		return string(b)
	}
	keys := make([]string, 64)
	for i := range keys {
		keys[i] = letters(i, s.before)
		if s.tag >= 0 {
			keys[i] += "{" + letters(i+1, s.tag) + "}" + letters(i+2, s.after)
		}
	}
	return keys
}

// One loop per library, so that each is called directly and none is inlined
// into a caller that throws its result away.

//go:noinline
func sumOurs(keys []string) (sum int) {
	for _, key := range keys {
		sum += int(slotmesh.KeySlot(key))
	}
	return sum
}

//go:noinline
func sumGoRedis(keys []string) (sum int) {
	for _, key := range keys {
		sum += goRedisSlot(key)
	}
	return sum
}

//go:noinline
func sumRueidis(keys []string) (sum int) {
	for _, key := range keys {
		sum += int(rueidisSlot(key))
	}
	return sum
}

// A race times the three libraries in turns, a few microseconds each, so that
// whatever else the machine does slows all of them alike. Its figures are
// medians: of nanoseconds per key, and of the quotients of neighbouring turns.
type race struct {
	keys                         []string
	ours, goRedis, rueidis       []float64
	goRedisByOurs, rueidisByOurs []float64
}

func (r *race) turn(b *testing.B) {
	const repeat = 4
	lap := func(sum func([]string) int) (nsPerKey float64, total int) {
		sum(r.keys) // keys, code and branch predictor are warm for each alike
		start := time.Now()
		for range repeat {
			total += sum(r.keys)
		}
		return float64(time.Since(start).Nanoseconds()) / float64(repeat*len(r.keys)), total
	}
	ours, want := lap(sumOurs)
	goRedis, g := lap(sumGoRedis)
	rueidis, u := lap(sumRueidis)
	if g != want || u != want {
		b.Fatalf("sums of slots differ: ours %d, go-redis %d, rueidis %d", want, g, u)
	}
	r.ours, r.goRedis, r.rueidis = append(r.ours, ours), append(r.goRedis, goRedis), append(r.rueidis, rueidis)
	r.goRedisByOurs = append(r.goRedisByOurs, goRedis/ours)
	r.rueidisByOurs = append(r.rueidisByOurs, rueidis/ours)
}

func median(xs []float64) float64 {
	slices.Sort(xs)
	return xs[len(xs)/2]
}

func BenchmarkKeySlotBesideClients(b *testing.B) {
	var shapes []keyShape
	for _, n := range []int{1, 2, 3, 4, 8, 9, 12, 16, 17, 32, 48, 64, 128, 256} {
		shapes = append(shapes, keyShape{n, -1, 0})
	}
	shapes = append(shapes,
		keyShape{0, 1, 0}, keyShape{0, 4, 0}, keyShape{0, 4, 10}, keyShape{0, 9, 12}, keyShape{0, 14, 0}, keyShape{0, 16, 16},
		keyShape{0, 30, 0}, keyShape{0, 62, 0}, keyShape{5, 1, 5}, keyShape{5, 4, 5}, keyShape{5, 9, 10}, keyShape{20, 1, 0},
		keyShape{20, 16, 20}, keyShape{100, 9, 10})
	for _, shape := range shapes {
		b.Run(shape.String(), func(b *testing.B) {
			r := race{keys: shape.keys()}
			for b.Loop() {
				r.turn(b)
			}
			b.ReportMetric(0, "ns/op") // all three together: says nothing
			b.ReportMetric(median(r.ours), "ours-ns/key")
			b.ReportMetric(median(r.goRedis), "goredis-ns/key")
			b.ReportMetric(median(r.rueidis), "rueidis-ns/key")
			b.ReportMetric(median(r.goRedisByOurs), "goredis/ours")
			b.ReportMetric(median(r.rueidisByOurs), "rueidis/ours")
		})
	}
}

// BenchmarkKeySlotWorstLength looks at every length from 1 to 256 for the one
// where KeySlot gains least on go-redis: for plain keys, and for keys that are
// one tag with its braces.
func BenchmarkKeySlotWorstLength(b *testing.B) {
	for name, shape := range map[string]func(n int) keyShape{
		"plain": func(n int) keyShape { return keyShape{n, -1, 0} },
		"tag":   func(n int) keyShape { return keyShape{0, n - 2, 0} },
	} {
		b.Run(name, func(b *testing.B) {
			var races []*race
			for n := 1; n <= 256; n++ {
				if s := shape(n); s.before+s.tag > 0 {
					races = append(races, &race{keys: s.keys()})
				}
			}
			for b.Loop() {
				for _, r := range races {
					r.turn(b)
				}
			}
			worst, length := 1e9, 0
			for _, r := range races {
				if q := median(r.goRedisByOurs); q < worst {
					worst, length = q, len(r.keys[0])
				}
			}
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(worst, "worst-goredis/ours")
			b.ReportMetric(float64(length), "at-bytes")
		})
	}
}
