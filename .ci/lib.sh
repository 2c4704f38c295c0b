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

# in_module DIR COMMAND...: runs a command in a module.
in_module() { (cd "$1" && shift && "$@"); }

# fuzz TIME: each fuzz target of each package for so long.
fuzz() {
	local pkg target
	for pkg in $(go list ./...); do
		for target in $(go test -list '^Fuzz' "$pkg" | grep '^Fuzz' || true); do
			printf '    %s %s\n' "$pkg" "$target"
			go test -run '^$' -fuzz "^$target\$" -fuzztime "$1" "$pkg" || return 1
		done
	done
}

# sim FLAGS...: the simulator.
sim() { go test -v -run '^TestSim$' . "$@"; }
