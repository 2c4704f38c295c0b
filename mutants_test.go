//go:build mutants

package slotmesh

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// Bugs planted on purpose measure the tests: each has to be found by the simulator,
// those that need a chain of events (bySchedule) by a schedule of their own, and those of
// drivers by a test. Where a schedule names one that the simulator finds, it finds it,
// too. One command plants them all, one after the other:
//
//	go test -tags mutants -run TestMutants .
//
// testdata/mutants.txt holds the seed that has found each last. Beginning there
// is fast; from seed 1, -update writes the table anew.

var (
	mutantsFrom = flag.String("mutants.from", "last", "where the search for each mutant begins: last, the seed that found it last, or 1, the first one")
	mutantsOnly = flag.String("mutants.only", "", "names of the mutants to plant, with commas between; all if empty")
	mutantSeeds = flag.Uint64("mutants.seeds", 1000, "seeds that the simulator has to find a mutant")
	update      = flag.Bool("update", false, "write testdata/mutants.txt anew; with -mutants.from=1")
)

const mutantsTable = "testdata/mutants.txt"

// finding is how a mutant was found: a row of the table.
type finding struct {
	name      string
	how       string // sim, or the name of a schedule
	seed      uint64
	at        time.Duration // simulated
	invariant string
}

func (f finding) String() string {
	return fmt.Sprintf("%-20s %-34s %5d %10.3fs  %s", f.name, strings.ReplaceAll(f.how, " ", "-"), f.seed, f.at.Seconds(), f.invariant)
}

func TestMutants(t *testing.T) {
	table := readFindings(t)
	var found []finding
	for m := mutant(1); m < numMutants; m++ {
		was := table[m.String()]
		if only := *mutantsOnly; only != "" && !slices.Contains(strings.Split(only, ","), m.String()) {
			if was.name != "" {
				found = append(found, was)
			}
			continue
		}
		f, ok := findMutant(t, m, was)
		if !ok {
			t.Errorf("%-20s not found by %s", m, f.how)
			continue
		}
		found = append(found, f)
	}
	if *update {
		writeFindings(t, found)
	}
}

// findMutant plants m and looks for it, first where it was found last.
func findMutant(t *testing.T, m mutant, was finding) (finding, bool) {
	began := time.Now()
	planted = m
	defer func() { planted = 0 }()

	if test := driverTests[m]; test != "" {
		f, ok := findByTest(t, m, test)
		t.Logf("%v  (%.1f s)", f, time.Since(began).Seconds())
		return f, ok
	}
	how, seeds, run := "sim", *mutantSeeds, mutantWorld
	if s := scheduleFor(m); s != nil {
		if bySchedule[m] {
			how, seeds, run = s.name, mutantScheduleSeeds, s.world
		} else if _, w := firstFailing(mutantScheduleSeeds, s.world); w == nil {
			t.Errorf("%-20s not found by %s, which names it", m, s.name)
		}
	}
	if *mutantsFrom == "last" && was.name != "" && was.how == strings.ReplaceAll(how, " ", "-") {
		if w := safely(run, was.seed); violates(w) {
			f := findingOf(m, how, was.seed, w)
			t.Logf("%v  (%.1f s)", f, time.Since(began).Seconds())
			return f, true
		}
		t.Logf("%-20s the table is stale: seed %d of %s does not find it any more", m, was.seed, how)
	}
	seed, w := firstFailing(seeds, run)
	if w == nil {
		return finding{name: m.String(), how: how}, false
	}
	f := findingOf(m, how, seed, w)
	t.Logf("%v  (%.1f s)", f, time.Since(began).Seconds())
	return f, true
}

// bySchedule are the bugs that take a chain of events which chance brings about too
// seldom: the simulator need not find them.
var bySchedule = map[mutant]bool{
	mutNoLeaseWait: true, mutLeaseFull: true, mutForceNoWait: true, mutConsentNotFinal: true, mutLateSlot: true, mutStartSavedVotes: true,
	mutNoStartWait: true, mutMoveUnopened: true, mutMoveAnyBefore: true, mutForceGives: true, mutFormServesOn: true, mutFormLow: true,
	mutTakeAlive: true, mutEmptyStands: true, mutNoRank: true, mutMayGo: true, mutAckOld: true, mutAskingPaused: true,
	mutStandsStill: true, mutStuckBack: true, mutBrokenSpeaks: true, mutHangsVotes: true, mutLockstep: true, mutGiverLost: true,
	mutStaysPut: true, mutIdleSpare: true, mutShowsReplaced: true,
}

// driverTests are the tests that find the bugs that only the real drivers can have. Each
// runs in a process of its own, in which the bug is planted from the start.
var driverTests = map[mutant]string{
	mutAskEarly:     "TestAnAskFromAStrictShardWaitsForItsReplicas",
	mutCopyDeposed:  "TestADeposedPrimarySendsNoEndOfACopy",
	mutEndUnchecked: "TestACopyIsCheckedBeforeItTakesThePlaceOfTheOld",
	mutPastKept:     "TestAReplicaThatLeadsWithHalfACopyIsCopied",
	mutTailKept:     "TestAPrimaryThatWasCutOffDropsItsTailAndSaysSo",
	mutHaveOld:      "TestAcknowledgementsOfAnOlderEpochDoNotCount",
	mutHeldAlone:    "TestStagedIsSaidOnceTheMembersInSyncHaveTheStage",
	mutInPlaceAlone: "TestStagedInPlaceIsSaidOnceTheMembersInSyncHaveWhatHasCome",
	mutSeenAlone:    "TestAWinnerShowsWhatItHasInheritedOnceTheMembersInSyncHaveIt",
	mutCopyUnstaged: "TestACopyOfEverythingHasWhatIsStaged",
	mutCopyUnmarked: "TestMarksGoWithTheShard",
	mutMarkUnseen:   "TestAnAskFromAStrictShardWaitsUntilItsReplicasKnowTheMark",
}

func init() {
	flag.Func("mutants.plant", "plant the mutant of this name from the start", func(name string) error {
		i := slices.Index(mutantNames[:], name)
		if i < 0 {
			return fmt.Errorf("no mutant has the name %q", name)
		}
		planted = mutant(i)
		return nil
	})
}

const mutantTestLimit = time.Minute // that the test of a driver has to find a mutant

// findByTest runs a test that has to fail: that it ends in time, and fails by itself,
// is seen in what it prints.
func findByTest(t *testing.T, m mutant, test string) (finding, bool) {
	t.Helper()
	f := finding{name: m.String(), how: test, invariant: "test"}
	ctx, cancel := context.WithTimeout(t.Context(), mutantTestLimit)
	defer cancel()
	out, err := exec.CommandContext(ctx, os.Args[0], "-test.run", "^"+test+"$", "-mutants.plant", m.String()).CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || !strings.Contains(string(out), "--- FAIL: "+test) {
		t.Logf("%s: %v, %s", test, err, out)
		return f, false
	}
	return f, true
}

func mutantWorld(seed uint64) *simWorld { return simRun(seed, *simNodes, *simDuration, nil) }

// firstFailing is the smallest seed that violates an invariant, whichever
// worker is faster.
func firstFailing(seeds uint64, run func(uint64) *simWorld) (uint64, *simWorld) {
	var (
		mu    sync.Mutex
		next  uint64 = 1
		best  uint64
		bestW *simWorld
		wg    sync.WaitGroup
	)
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for {
				mu.Lock()
				seed := next
				next++
				stop := seed > seeds || bestW != nil
				mu.Unlock()
				if stop {
					return
				}
				w := safely(run, seed)
				mu.Lock()
				if violates(w) && (bestW == nil || seed < best) {
					best, bestW = seed, w
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return best, bestW
}

// safely runs a seed; a panic of the core is a violation like any other.
func safely(run func(uint64) *simWorld, seed uint64) (w *simWorld) {
	defer func() {
		if r := recover(); r != nil {
			w = newSimWorld(seed)
			w.fail("panic", "%v", r)
		}
	}()
	return run(seed)
}

// violates reports whether a world has violated an invariant: a schedule that did
// not come about has shown nothing.
func violates(w *simWorld) bool { return len(w.fails) > 0 && firstViolated(w) != notReached }

func firstViolated(w *simWorld) string {
	_, what, _ := strings.Cut(w.fails[0], " ")
	invariant, _, _ := strings.Cut(what, ":")
	return invariant
}

func findingOf(m mutant, how string, seed uint64, w *simWorld) finding {
	return finding{m.String(), how, seed, w.now, firstViolated(w)}
}

func readFindings(t *testing.T) map[string]finding {
	t.Helper()
	table := map[string]finding{}
	f, err := os.Open(mutantsTable)
	if err != nil {
		if os.IsNotExist(err) && *update {
			return table
		}
		t.Fatal(err)
	}
	defer f.Close()
	for sc := bufio.NewScanner(f); sc.Scan(); {
		if strings.HasPrefix(sc.Text(), "#") {
			continue
		}
		c := strings.Fields(sc.Text())
		if len(c) != 5 {
			t.Fatalf("%s: %q, expected five columns", mutantsTable, sc.Text())
		}
		seed, err := strconv.ParseUint(c[2], 10, 64)
		if err != nil {
			t.Fatalf("%s: %q: %v", mutantsTable, sc.Text(), err)
		}
		at, err := time.ParseDuration(c[3])
		if err != nil {
			t.Fatalf("%s: %q: %v", mutantsTable, sc.Text(), err)
		}
		table[c[0]] = finding{c[0], c[1], seed, at, c[4]}
	}
	return table
}

func writeFindings(t *testing.T, found []finding) {
	t.Helper()
	var b strings.Builder
	b.WriteString("# Which seed has found each mutant last, after how much simulated time, by which invariant.\n")
	b.WriteString("# Written by: go test -tags mutants -run TestMutants -mutants.from=1 -update .\n")
	for _, f := range found {
		fmt.Fprintln(&b, f)
	}
	if err := os.WriteFile(mutantsTable, []byte(b.String()), 0o644); err != nil {
		t.Fatal(err)
	}
}

const mutantScheduleSeeds = 60 // that a schedule has to find a mutant

// scheduleFor is the schedule that names a mutant; nil if none does.
func scheduleFor(m mutant) *schedule {
	all := schedules()
	if i := slices.IndexFunc(all, func(s *schedule) bool { return slices.Contains(s.finds, m) }); i >= 0 {
		return all[i]
	}
	return nil
}
