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

# fuzz TIME: each fuzz target of each package for so long, two at a time.
fuzz() {
	local pkg target
	for pkg in $(go list ./...); do
		for target in $(go test -list '^Fuzz' "$pkg" | grep '^Fuzz' || true); do
			printf '%s %s %s\n' "$1" "$pkg" "$target"
		done
	done | xargs -P 2 -L 1 bash -c '
		if out=$(go test -run "^\$" -fuzz "^$2\$" -fuzztime "$0" -parallel 1 "$1" 2>&1); then
			printf "    ok %s %s\n" "$1" "$2"
		else
			printf "    FAIL %s %s\n%s\n" "$1" "$2" "$out"
			exit 255 # xargs starts no more
		fi'
}

# sim FLAGS...: the simulator.
sim() { go test -v -vet=off -run '^TestSim$' . "$@"; }

# raced FLAGS...: the tests of all packages, those of compat too, under the race
# detector. Those of the root take as long as all others together, most of them in fake
# time: they take what the others, which run beside them and time real programs, leave
# of the processors. The flags are for the root. The detector spends much of its time on
# what is collected: that is done less often.
raced() {
	local failed=0 out others
	local -x GOGC=400
	local -a test=(go test -v -count=1 -race -shuffle=on -vet=off -timeout 30m)
	out=$(mktemp)
	{
		set +e
		"${test[@]}" $(go list ./... | tail -n +2) && in_module compat "${test[@]}" . -compat.fragments=500
	} >"$out" 2>&1 &
	others=$!
	nice -n 10 "${test[@]}" -parallel 4 . "$@" || failed=1
	wait $others || failed=1
	cat "$out"
	rm -f "$out"
	return $failed
}
