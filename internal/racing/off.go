//go:build !race

package racing

// On says that the race detector is on.
const On = false
