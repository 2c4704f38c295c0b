# Shared by run and long: steps with their outcome and time.

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

STATICCHECK=honnef.co/go/tools/cmd/staticcheck@v0.8.2

# step NAME COMMAND...: runs a command, and ends the run if it fails.
step() {
	local name=$1 began=$SECONDS
	shift
	printf '=== %s\n' "$name"
	if ! "$@"; then
		printf -- '--- FAIL: %s (%d s)\n' "$name" $((SECONDS - began))
		exit 1
	fi
	printf -- '--- ok: %s (%d s)\n' "$name" $((SECONDS - began))
}

formatted() {
	local bad
	bad=$(gofmt -l .)
	[ -z "$bad" ] || { printf 'gofmt would change:\n%s\n' "$bad"; return 1; }
}

# redis_tools installs what the tests in compat compare with, where it is missing.
redis_tools() {
	type redis-server redis-cli redis-benchmark redis-check-rdb >/dev/null 2>&1 && return
	local sudo=
	[ "$(id -u)" = 0 ] || sudo=sudo
	$sudo apt-get update -qq && $sudo apt-get install -y -qq redis-tools redis-server >/dev/null
}

# in_module DIR COMMAND...: runs a command in a module.
in_module() { (cd "$1" && shift && "$@"); }

# beside FUNCTION COMMAND...: runs a command, and a function at the same time, whose output
# follows. Both must succeed.
beside() {
	local failed=0 out other=$1
	shift
	out=$(mktemp)
	{
		set +e
		"$other"
	} >"$out" 2>&1 &
	"$@" || failed=1
	wait $! || failed=1
	cat "$out"
	rm -f "$out"
	return $failed
}

compat_checked() { in_module compat go vet ./... && in_module compat go run $STATICCHECK ./...; }

# fuzz TIME: each fuzz target of each package for so long, two at a time. A package is
# built once, before any target runs: go test -fuzz would link it anew for each of its
# targets, which takes the processors from the one that runs beside.
fuzz() {
	local bins failed=0
	bins=$(mktemp -d)
	fuzz_targets "$bins" >"$bins/targets" && xargs -P 2 -L 1 bash -c '
		cd "$3" || exit 255
		for try in 1 2; do
			if out=$("$4" -test.run "^\$" -test.fuzz "^$5\$" -test.fuzztime "$0" -test.fuzzcachedir "$1/$2" -test.parallel 1 -test.fuzzminimizetime 1s 2>&1); then
				printf "    ok %s %s\n" "$2" "$5"
				exit 0
			fi
			# The end of the time may find the worker busy, mostly with making an input
			# smaller, for a minute if it may: go test takes that for a failure.
			[[ $out == *"context deadline exceeded"* && $out != *"Failing input"* ]] || break
		done
		printf "    FAIL %s %s\n%s\n" "$2" "$5" "$out"
		exit 255 # xargs starts no more
		' "$1" "$(go env GOCACHE)/fuzz" <"$bins/targets" || failed=1
	rm -rf "$bins"
	return $failed
}

# fuzz_targets BINS: a line per target: its package, the folder of that, the program, which
# is built into BINS, and the target.
fuzz_targets() {
	local pkg dir bin
	go list -f '{{.ImportPath}} {{.Dir}}' ./... | while read -r pkg dir; do
		grep -qs '^func Fuzz' "$dir"/*_test.go || continue
		bin=$1/${pkg//\//_}
		go test -c -vet=off -fuzz . -ldflags=-w -o "$bin" "$pkg" </dev/null || return 1
		"$bin" -test.list '^Fuzz' </dev/null | sed -n "s|^Fuzz.*|$pkg $dir $bin &|p" || return 1
	done
}

# sim FLAGS...: the simulator.
sim() { go test -v -vet=off -run '^TestSim$' . "$@"; }

# sim_large is one world, and so one goroutine: it does not fill two processors.
sim_large() { sim -sim.seed=4 -sim.seeds=1 -sim.duration=30s -sim.nodes=200; }

# The detector spends much of its time on what is collected: that is done less often.
race_test=(env GOGC=400 go test -v -count=1 -race -shuffle=on -vet=off -timeout 30m)

# raced FLAGS...: the tests of all packages, those of compat too, under the race
# detector. Those of the root, most of them in fake time, take what the others, which run
# beside them and time real programs, leave of the processors. The flags are for the root.
raced() { beside raced_others nice -n 10 "${race_test[@]}" -parallel 4 . "$@"; }

raced_others() {
	"${race_test[@]}" $(go list ./... | tail -n +2) && in_module compat "${race_test[@]}" . -compat.fragments=200 -compat.wide=20000 -compat.crowd=5000
}
