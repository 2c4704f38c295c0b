package slotmesh

// commandCode says what kind of refusal a command met.
type commandCode uint8

const (
	codeInvalid     commandCode = iota + 1 // the arguments, or the state of this node, do not allow it
	codeClusterDown                        // no majority, no primary, no time left
	codeTryAgain                           // something else is under way for the same slots
)

// commandError is why a command of an operator was not carried out. It travels
// in FORWARDED, so that the caller reads the words of the node that refused.
type commandError struct {
	Code      commandCode
	Text      string
	MayHappen bool // a majority may still decide it
}

func (e *commandError) Error() string { return e.Text }
