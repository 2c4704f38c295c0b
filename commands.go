package slotmesh

import "fmt"

func invalid(format string, args ...any) *commandError {
	return &commandError{Code: codeInvalid, Text: fmt.Sprintf(format, args...)}
}

func tryAgain(format string, args ...any) *commandError {
	return &commandError{Code: codeTryAgain, Text: fmt.Sprintf(format, args...)}
}

func clusterDown(format string, args ...any) *commandError {
	return &commandError{Code: codeClusterDown, Text: fmt.Sprintf(format, args...)}
}

func mayHappen(format string, args ...any) *commandError {
	return &commandError{Code: codeClusterDown, Text: fmt.Sprintf(format, args...) + "; it may still happen", MayHappen: true}
}

func stillHoldKeys(slot Slot) *commandError {
	return invalid("Can't assign hashslot %d to a different node while I still hold keys for this hash slot.", slot)
}
