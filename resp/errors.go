package resp

import "strings"

// Error is an error reply: the code, a space and the text, as it goes over the
// wire without the leading '-'.
type Error string

func (e Error) Error() string { return string(e) }

// Code is the first word, as in "WRONGTYPE".
func (e Error) Code() string {
	code, _, _ := strings.Cut(string(e), " ")
	return code
}

// What many commands answer, in the words of Redis.
const (
	errWrongType  Error = "WRONGTYPE Operation against a key holding the wrong kind of value"
	errSyntax     Error = "ERR syntax error"
	errNotInteger Error = "ERR value is not an integer or out of range"
	errNotFloat   Error = "ERR value is not a valid float"
	errNoSuchKey  Error = "ERR no such key"
	errOutOfRange Error = "ERR index out of range"
	errBadExpire  Error = "ERR invalid expire time in '%s' command"
	errCrossSlot  Error = "CROSSSLOT Keys in request don't hash to the same slot"
	// What it says where the server is no cluster, and its client does not think of slots.
	errCrossSlotAlone Error = errCrossSlot + ": this server is no cluster, but a command or a transaction of it runs at one slot, too; keys that share a {tag} are in one"
	errNoAuth         Error = "NOAUTH Authentication required."
	errExecAbort      Error = "EXECABORT Transaction discarded because of previous errors."
	errNoKeys         Error = "ERR The command has no key arguments"
	errNotPositive    Error = "ERR value is out of range, must be positive"
)
