package transport

import (
	"bytes"
	"math/rand/v2"
	"testing"
)

func TestARingIsAQueueOfBytes(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 1))
	var r ring
	var want bytes.Buffer
	next := byte(0)
	for step := range 20_000 {
		if rnd.IntN(2) == 0 {
			p := make([]byte, min(rnd.IntN(1<<rnd.IntN(17)), bufferSize-r.n))
			for i := range p {
				next++
				p[i] = next
			}
			r.write(p)
			want.Write(p)
			last := r.last(min(len(p), 100))
			if got := append(bytes.Clone(last[0]), last[1]...); !bytes.Equal(got, p[len(p)-len(got):]) {
				t.Fatalf("step %d: the last bytes are not those that were written", step)
			}
		} else {
			p := make([]byte, rnd.IntN(r.n+1))
			r.read(p)
			if !bytes.Equal(p, want.Next(len(p))) {
				t.Fatalf("step %d: read bytes that were not written", step)
			}
		}
		if r.n != want.Len() || len(r.data) > bufferSize {
			t.Fatalf("step %d: %d bytes in an array of %d, want %d in at most %d", step, r.n, len(r.data), want.Len(), bufferSize)
		}
	}
	r.read(make([]byte, r.n))
	r.write(make([]byte, bufferSize))
	r.read(make([]byte, bufferSize))
	if len(r.data) != bufferSize {
		t.Errorf("a ring that was full keeps %d bytes, want all of them", len(r.data))
	}
	r.write(make([]byte, 64))
	r.read(make([]byte, 64))
	if r.data != nil {
		t.Errorf("a ring of small messages keeps %d bytes", len(r.data))
	}
}

func TestOneBitIsFlippedWhereverItIs(t *testing.T) {
	for bit := range 80 {
		a, b := make([]byte, 3), make([]byte, 7)
		flip([2][]byte{a, b}, bit)
		all := append(bytes.Clone(a), b...)
		if all[bit/8] != 1<<(bit%8) {
			t.Errorf("bit %d: byte %d is %08b", bit, bit/8, all[bit/8])
		}
		all[bit/8] = 0
		if !bytes.Equal(all, make([]byte, 10)) {
			t.Errorf("bit %d: other bits are flipped too: %v", bit, all)
		}
	}
}
