package slotmesh

import (
	"fmt"
	"unicode"
	"unicode/utf8"
)

// The messages of the bus. Each is sent between two nodes over a connection
// whose handshake has named both (sender, wanted): identity belongs to the
// connection and is in no message. A message is never changed after it has been
// handed over for sending, for the same value may go to many.
//
// Any message may be lost, come twice, late or out of order. What repairs a
// loss stands beside the type.

type msgKind uint8

const (
	msgMeet msgKind = iota + 1
	msgSeed
	msgRefused
	msgHeartbeat // PING and PONG in one
	msgFail
	msgUpdate
	msgUpdated
	msgDigest
	msgVote
	msgGrant
	msgRefuse
	msgRecord
	msgMove
	msgAccept
	msgStop
	msgStopped
	msgStart
	msgStarted
	msgGetStart
	msgAskStart
	msgNoStart
	msgForward
	msgForwarded
	msgStage
	msgStaged
	msgCancelStage
	msgRecords
	msgGetRecords
	msgInSync
	msgFailover
	msgConsent
	numMsgKinds
)

var msgNames = [numMsgKinds]string{
	msgMeet: "MEET", msgSeed: "SEED", msgRefused: "REFUSED", msgHeartbeat: "HEARTBEAT", msgFail: "FAIL",
	msgUpdate: "UPDATE", msgUpdated: "UPDATED", msgDigest: "DIGEST",
	msgVote: "VOTE", msgGrant: "GRANT", msgRefuse: "REFUSE", msgRecord: "RECORD", msgMove: "MOVE", msgAccept: "ACCEPT",
	msgStop: "STOP", msgStopped: "STOPPED", msgStart: "START", msgStarted: "STARTED",
	msgGetStart: "GETSTART", msgAskStart: "ASKSTART", msgNoStart: "NOSTART",
	msgForward: "FORWARD", msgForwarded: "FORWARDED",
	msgStage: "STAGE", msgStaged: "STAGED", msgCancelStage: "CANCELSTAGE",
	msgRecords: "RECORDS", msgGetRecords: "GETRECORDS",
	msgInSync: "INSYNC", msgFailover: "FAILOVER", msgConsent: "CONSENT",
}

func (k msgKind) String() string {
	if k > 0 && k < numMsgKinds {
		return msgNames[k]
	}
	return fmt.Sprintf("message(%d)", uint8(k))
}

// message is one message of the bus.
type message interface {
	kind() msgKind
	// check returns an error if a decoded message is not one that a node sends:
	// counts out of range, indexes outside their palettes, slots out of order.
	check() error
}

// sender is who sent a message: what its side of the handshake said.
type sender struct {
	ID          NodeID
	Key         uint64
	Cluster     ClusterID // zero: unformed
	Incarnation uint64
	Starts      uint64 // this and what follows: its facts, as in peerEntry
	Facts       uint64
	Addr        string
	ClientAddr  string
	Hostname    string
	Host        string
	Shard       ShardID
	Store       uint64
	NoFailover  bool
	Timeout     uint32 // NodeTimeout, milliseconds: only to be compared
}

// wanted is whom a message is for: what the handshake of its connection named.
// The zero value names nobody: MEET and SEED go to whoever lives at an address.
type wanted struct {
	ID          NodeID
	Key         uint64
	Incarnation uint64 // zero where it is not known
}

// formNumbers are what nodes that form a cluster by number must agree on; zero
// where a node forms by hand.
type formNumbers struct {
	Seeds     uint64 // hash of the configured seeds
	Primaries uint16
	Replicas  uint16
}

// meetMsg asks whoever lives at an address to be of one cluster with the sender.
// Repeated each tick until it is answered, ten NodeTimeouts at most, not saved.
type meetMsg struct {
	Nonce  uint64   // returned in the answer, an UPDATE
	Claims slotRuns // what the sender's group has assigned while it is unformed
	Form   formNumbers
}

// seedMsg looks for the sender's own cluster at a configured address. Repeated
// until every seed is a known live member.
type seedMsg struct {
	Claims slotRuns
	Form   formNumbers
}

type refusal uint8

const (
	refusedOther     refusal = iota + 1 // another node lives at this address
	refusedCluster                      // the sender lives in another cluster
	refusedSlot                         // both groups claim Slot
	refusedKeys                         // it holds keys in slots of others
	refusedForming                      // it is forming another cluster
	refusedDuplicate                    // a second live instance of one id
)

var refusalTexts = map[refusal]string{
	refusedOther:     "another node lives at this address",
	refusedCluster:   "it belongs to another cluster, expected a node of none: it has to be reset first",
	refusedSlot:      "both sides have assigned the same slot",
	refusedKeys:      "it owns slots and holds keys",
	refusedForming:   "it is forming another cluster",
	refusedDuplicate: "another live instance has the same node id",
}

func (r refusal) String() string {
	if t, ok := refusalTexts[r]; ok {
		return t
	}
	return fmt.Sprintf("refusal(%d)", uint8(r))
}

// refusedMsg answers a message that changes nothing here, and says why.
type refusedMsg struct {
	Why   refusal
	Slot  Slot   // of refusedSlot
	Nonce uint64 // of the MEET that it answers; 0: none
}

// heartbeat is the one frame that two nodes exchange when nothing happens, each
// at its own pace; each direction is its own evidence. It carries no entries,
// only digests. Between a primary and a voter it asks for a lease and answers
// the other's newest in one.
type heartbeat struct {
	Flags    beatFlags
	Table    uint64 // digest of the table
	Peers    uint64 // digest of the membership
	Start    uint64 // id of the START in force; zero where unformed
	Epoch    uint64 // number of the epoch under which the sender has opened its shard; of others, the last of its log
	N        uint64 // of its last accepted record
	Position uint64 // offset at which its log ends
	Sent     uint32 // time on the sender's clock, milliseconds
	Answers  uint32 // Sent of the receiver's newest heartbeat, if beatAnswers
	Lease    uint32 // given in answer to it, milliseconds; 0: none
	Promised uint64 // number of the epoch promised to another, where it is not lower
}

type beatFlags uint16

const (
	beatActive    beatFlags = 1 << iota // the sender votes under Start
	beatOpen                            // Epoch and N claim a shard and ask for a lease
	beatUnclean                         // of Epoch
	beatLeased                          // the sender is a primary that holds its lease
	beatAnswers                         // Answers, Lease, Promised and beatBehind hold
	beatBehind                          // the voter lacks the receiver's promise or record
	beatAnswerNow                       // answer at once
	beatStopped                         // the sender has answered a STOP, or has not saved yet what its digest says of the members
	beatHangs                           // a save of the sender is under way, and none has completed for a NodeTimeout
	allBeatFlags  = beatHangs<<1 - 1
)

// failMsg tells whom a voter finds silent, at each change. A lost one is repaired
// by the digest of the membership, of which the list is a part.
type failMsg struct {
	Silent silentEntry
}

// updateMsg carries entries of the table and of the membership: a change, pushed
// once to all, or the repair of one that was lost.
type updateMsg struct {
	Seq    uint64 // to be acknowledged; 0: need not be
	Met    uint64 // Nonce of the MEET that it answers; 0: none
	Form   formNumbers
	Peers  []peerEntry
	Silent []silentEntry
	Slots  slotRuns
	Shards []shardRow
	Voters []voterSet // none or one
	Giver  ShardID    // of Slots, if the sender has counted the majority that moved them
}

type shardRow struct {
	ID    ShardID
	Epoch Epoch
}

// updatedMsg acknowledges an update.
type updatedMsg struct {
	Seq uint64
}

// digestMsg compares two tables bucket by bucket. The answer names the buckets
// that differ and is followed by their entries; the asker then sends its own. Mute is
// the question of a node that can save nothing: it is answered, and is no sign of life.
type digestMsg struct {
	Answer bool
	Mute   bool
	Table  []uint64 // numBuckets each, when asking
	Peers  []uint64
	WantT  uint64 // bit per bucket, when answering
	WantP  uint64
}

type why uint8

const (
	whySilence  why = iota // no leased primary is heard, or the primary stands again
	whyConsent             // plain failover: the primary has agreed
	whyForce               // an operator's FORCE: waits for no lease, serves late
	whyOperator            // R9: somebody else gives the shard's slots away
	whyUnclean             // no in-sync member is left
	numWhys
)

func (w why) String() string {
	if w >= numWhys {
		return fmt.Sprintf("why(%d)", uint8(w))
	}
	return [numWhys]string{"silence", "consent", "force", "operator", "unclean"}[w]
}

// voteMsg (VOTE) asks for a promise: the sender stands for Shard. Repeated each
// NodeTimeout/10 until it is answered.
type voteMsg struct {
	Voters      voterVersion
	Shard       ShardID
	Epoch       Epoch
	Incarnation uint64
	Records     []record // the newest one known that names the sender; none or one
	Slots       moveRuns // the shard's slots
	Why         why
	Consent     Epoch // of whyConsent: its primary acknowledges nothing more under it
}

// grantMsg answers a VOTE: promised.
type grantMsg struct {
	Voters   voterVersion
	Shard    ShardID
	Epoch    Epoch
	Records  []record   // what the voter holds; none or one
	Accepted acceptRuns // moves of the named slots, the named ones or above
	Opened   openRuns   // openings of the named slots at the named moves
	MaxLease uint32     // longest lease that the voter has ever given, milliseconds
}

type refuseWhy uint8

const (
	refusePromised refuseWhy = iota + 1 // Promised is newer
	refuseInSync                        // the candidate is not in Records[0]
	refuseLease                         // somebody else's lease may still run
	refuseLives                         // whyOperator: the primary lives
	refuseBehind                        // the record is older than Records[0]
	refuseMoved                         // Accepted holds newer moves
)

func (w refuseWhy) String() string {
	if w == 0 || w > refuseMoved {
		return fmt.Sprintf("refuseWhy(%d)", uint8(w))
	}
	return [...]string{"promised", "not in sync", "lease", "primary lives", "behind", "moved"}[w-1]
}

// refuseMsg answers VOTE, RECORD and MOVE: not done, with what is newer.
type refuseMsg struct {
	Voters   voterVersion
	Shard    ShardID
	Epoch    Epoch
	Ballot   uint64 // of MOVE
	Why      refuseWhy
	Promised Epoch
	Records  []record
	Accepted acceptRuns
	RetryIn  uint32 // ask again after so many milliseconds
}

// recordMsg (RECORD) opens an epoch or changes the in-sync set; each accept is
// a lease, counted from Sent. Repeated each NodeTimeout/10 until a majority has
// accepted, and to a voter whose heartbeats say that it is behind.
type recordMsg struct {
	Voters voterVersion
	Record record
	Sender uint64     // incarnation
	Kept   acceptRuns // half-accepted moves that the opening completes
	Opened moveRuns   // slots that the opening serves
	Sent   uint32
}

// moveMsg (MOVE) gives slots away. Repeated each NodeTimeout/10 until decided.
type moveMsg struct {
	Voters voterVersion
	Shard  ShardID // the giver
	Epoch  Epoch
	Ballot uint64 // names the proposal in its answers
	Slots  acceptRuns
}

// acceptMsg (ACCEPT) answers RECORD and MOVE: saved.
type acceptMsg struct {
	Voters voterVersion
	Shard  ShardID
	Epoch  Epoch
	Ballot uint64 // of MOVE; 0 answers RECORD
	N      uint64 // of RECORD
	Sent   uint32 // of RECORD
	Lease  uint32
}

// ballot orders the attempts to change the voters of one version.
type ballot struct {
	Number uint64
	Node   NodeID
}

func (b ballot) less(o ballot) bool {
	if b.Number != o.Number {
		return b.Number < o.Number
	}
	return b.Node.compare(o.Node) < 0
}

func (b ballot) isZero() bool { return b == ballot{} }

// promiseRow is what a voter has promised for a shard.
type promiseRow struct {
	Shard       ShardID
	Epoch       Epoch
	Incarnation uint64
}

// votes is all that a voter keeps, as STOPPED and START carry it.
type votes struct {
	Promises []promiseRow
	Records  []record
	Accepted acceptRuns
	Opened   openRuns
	MaxLease uint32
}

func (v *votes) check() error {
	if err := v.Accepted.check(); err != nil {
		return err
	}
	return v.Opened.check()
}

// startValue is what a change of voters decides: the next set with the records
// that it begins with. At formation also the table.
type startValue struct {
	ID      uint64
	Cluster ClusterID
	Version voterVersion
	Members []member
	Votes   votes

	// Formation only.
	Formers  []member
	ByNumber bool
	Table    uint64 // digests of the table that it forms
	Peers    uint64
	Entries  []peerEntry
	Slots    slotRuns
	Shards   []shardRow
}

func (v *startValue) voters() voterSet {
	return voterSet{Version: v.Version, ID: v.ID, Members: v.Members}
}

func (v *startValue) forms() bool { return len(v.Formers) > 0 }

func (v *startValue) check() error {
	if err := checkVoters(v.Members); err != nil {
		return err
	}
	if !ascending(v.Formers, member.compare) {
		return fmt.Errorf("%d formers, expected each once in ascending order", len(v.Formers))
	}
	if err := checkEach(v.Entries, (*peerEntry).check); err != nil {
		return err
	}
	if err := v.Votes.check(); err != nil {
		return err
	}
	return v.Slots.check()
}

// stopMsg asks the voters of a version to grant, accept and lease nothing more
// under it. Repeated each tick.
type stopMsg struct {
	Voters voterVersion
	Ballot ballot
	Wanted []member // who shall vote next; at formation none
}

// stoppedMsg answers STOP with all that the voter keeps.
type stoppedMsg struct {
	Voters      voterVersion
	Ballot      ballot
	Votes       votes
	Starts      []startValue // the START that it has saved, if any
	StartBallot ballot
	Left        []peerEntry // those of the wanted that leave or are members no more
}

// startMsg proposes the next set of voters. Repeated each tick. Without a ballot
// it hands the START in force to a member that lacks it.
type startMsg struct {
	Voters voterVersion // the version that it ends
	Ballot ballot
	Value  startValue
	Pull   bool
}

// startedMsg answers START: saved.
type startedMsg struct {
	Voters voterVersion
	Ballot ballot
	ID     uint64
}

// getStartMsg asks for the START in force. Each tick, from a member without it.
type getStartMsg struct {
	ID uint64
}

// askStartMsg asks a former whether it still holds a START of formation, noStart
// answers that it does not and never will again: such a START is dead.
type askStartMsg struct {
	ID     uint64
	Ballot ballot
}

type noStartMsg struct {
	ID uint64
}

// forwardMsg asks the primary of a shard to give slots away; from an operator's
// command elsewhere. Repeated each 150 ms until the table shows it.
type forwardMsg struct {
	Request uint64
	Slots   moveRuns // with their moves, so that a late one does nothing
	From    ShardID
	To      ShardID
}

// forwardedMsg answers forward with a refusal; success shows in the table.
type forwardedMsg struct {
	Request uint64
	Error   commandError
}

// stageMsg tells the primary of To what is about to be handed over, and asks it to
// say when it holds the data. Repeated until answered or thawed.
type stageMsg struct {
	Job      uint64
	Giver    ShardID
	Epoch    Epoch // of the giver
	Position uint64
	To       ShardID
	Slots    moveRuns // with the moves that they will have
	InPlace  bool     // the data is at the target already: slot by slot, by an operator's tool
}

// stagedMsg answers stage: held, in ToEpoch.
type stagedMsg struct {
	Job      uint64
	Giver    ShardID
	Epoch    Epoch
	Position uint64
	Error    string // why it refuses; "" if held
}

// cancelStageMsg drops a stage by name, from the giver's opened primary.
type cancelStageMsg struct {
	Job   uint64
	Giver ShardID
	Epoch Epoch
}

// getRecordsMsg asks any voter, stopped or not, for all that it keeps; records
// answers. For an operator who imposes voters when a majority is gone.
type getRecordsMsg struct {
	Request uint64
}

type recordsMsg struct {
	Request uint64
	Voters  voterVersion
	Votes   votes
}

// inSyncMsg tells the members of a shard its accepted record, from the primary. A
// member that misses it sees so in the primary's heartbeats, which say epoch and n, and
// asks: with an inSyncMsg without a record, once a heartbeat until it knows. The
// voters tell it when it stands.
type inSyncMsg struct {
	Record record
}

// failoverMsg asks the primary of the sender's shard to hand the shard over to it.
// Repeated each NodeTimeout/10 until it is answered.
type failoverMsg struct {
	Request uint64
	Shard   ShardID
	Epoch   Epoch // of the primary: one that leads in another has been asked late
}

// consentMsg answers failover: the sender acknowledges nothing more under Epoch,
// and the asker has everything that it has acknowledged. With an error nothing has
// changed.
type consentMsg struct {
	Request uint64
	Epoch   Epoch
	Error   string // why not; "" where it agrees
	NotYet  bool   // what is in the way passes: who asks again may hear that it agrees
}

func (*meetMsg) kind() msgKind        { return msgMeet }
func (*seedMsg) kind() msgKind        { return msgSeed }
func (*refusedMsg) kind() msgKind     { return msgRefused }
func (*heartbeat) kind() msgKind      { return msgHeartbeat }
func (*failMsg) kind() msgKind        { return msgFail }
func (*updateMsg) kind() msgKind      { return msgUpdate }
func (*updatedMsg) kind() msgKind     { return msgUpdated }
func (*digestMsg) kind() msgKind      { return msgDigest }
func (*voteMsg) kind() msgKind        { return msgVote }
func (*grantMsg) kind() msgKind       { return msgGrant }
func (*refuseMsg) kind() msgKind      { return msgRefuse }
func (*recordMsg) kind() msgKind      { return msgRecord }
func (*moveMsg) kind() msgKind        { return msgMove }
func (*acceptMsg) kind() msgKind      { return msgAccept }
func (*stopMsg) kind() msgKind        { return msgStop }
func (*stoppedMsg) kind() msgKind     { return msgStopped }
func (*startMsg) kind() msgKind       { return msgStart }
func (*startedMsg) kind() msgKind     { return msgStarted }
func (*getStartMsg) kind() msgKind    { return msgGetStart }
func (*askStartMsg) kind() msgKind    { return msgAskStart }
func (*noStartMsg) kind() msgKind     { return msgNoStart }
func (*forwardMsg) kind() msgKind     { return msgForward }
func (*forwardedMsg) kind() msgKind   { return msgForwarded }
func (*stageMsg) kind() msgKind       { return msgStage }
func (*stagedMsg) kind() msgKind      { return msgStaged }
func (*cancelStageMsg) kind() msgKind { return msgCancelStage }
func (*getRecordsMsg) kind() msgKind  { return msgGetRecords }
func (*recordsMsg) kind() msgKind     { return msgRecords }
func (*inSyncMsg) kind() msgKind      { return msgInSync }
func (*failoverMsg) kind() msgKind    { return msgFailover }
func (*consentMsg) kind() msgKind     { return msgConsent }

// ---- checks of what was decoded

// textLimit is how long an address, a label or a text may be. Nothing in them
// can end a line or begin another field where a node is printed.
const textLimit = 300

// checkText returns an error for what could not be printed in a line.
func checkText(field, text string) error {
	bad := func(r rune) bool { return !unicode.IsPrint(r) }
	if len(text) > textLimit || !utf8.ValidString(text) || containsRune(text, bad) {
		return fmt.Errorf("%s of %d bytes, expected %d printable ones at most", field, len(text), textLimit)
	}
	return nil
}

// checkWord returns an error for what is more than one field of a line.
func checkWord(field, text string) error {
	if containsRune(text, unicode.IsSpace) {
		return fmt.Errorf("%s %q, expected one without spaces", field, text)
	}
	return checkText(field, text)
}

func containsRune(text string, is func(rune) bool) bool {
	for _, r := range text {
		if is(r) {
			return true
		}
	}
	return false
}

// clipped is text, cut to the bytes that a message carries.
func clipped(text string) string {
	const more = "..."
	if len(text) <= textLimit {
		return text
	}
	end := textLimit - len(more)
	for !utf8.RuneStart(text[end]) {
		end--
	}
	return text[:end] + more
}

// ascending reports whether each element is above the one before.
func ascending[T any](list []T, compare func(a, b T) int) bool {
	for i := 1; i < len(list); i++ {
		if compare(list[i-1], list[i]) >= 0 {
			return false
		}
	}
	return true
}

func checkEach[T any](list []T, check func(*T) error) error {
	for i := range list {
		if err := check(&list[i]); err != nil {
			return err
		}
	}
	return nil
}

func checkAtMostOne(what string, n int) error {
	if n > 1 {
		return fmt.Errorf("%d %s, expected at most one", n, what)
	}
	return nil
}

// checkWhere checks how a node says that it is reached.
func checkWhere(addr, clientAddr, hostname, host string) error {
	if err := checkWord("address", addr); err != nil {
		return err
	}
	if err := checkWord("client address", clientAddr); err != nil {
		return err
	}
	if !validHostname(hostname) {
		return fmt.Errorf("host name of %d bytes, expected letters, digits, '.' and '-', %d at most", len(hostname), maxHostname)
	}
	return checkWord("host label", host)
}

// check returns an error if a handshake does not say who a node is.
func (s *sender) check() error {
	if s.ID.IsZero() {
		return fmt.Errorf("a sender without id")
	}
	return checkWhere(s.Addr, s.ClientAddr, s.Hostname, s.Host)
}

func (e *peerEntry) check() error {
	if e.ID.IsZero() || e.State > forgotten {
		return fmt.Errorf("entry of node %s in state %d, expected an id and a state up to %d", e.ID, e.State, forgotten)
	}
	return checkWhere(e.Addr, e.ClientAddr, e.Hostname, e.Host)
}

func (e *silentEntry) check() error {
	if !ascending(e.Nodes, NodeID.compare) {
		return fmt.Errorf("%d silent nodes, expected each once in ascending order", len(e.Nodes))
	}
	return nil
}

// check does not ask for an odd number: an operator may have lost one.
func (v *voterSet) check() error { return checkVoters(v.Members) }

func checkVoters(ms []member) error {
	if len(ms) == 0 || len(ms) > maxVotersLimit || !ascending(ms, member.compare) {
		return fmt.Errorf("%d voters, expected 1 to %d, each once in ascending order", len(ms), maxVotersLimit)
	}
	return nil
}

// check allows no code: what was asked has been done.
func (e *commandError) check() error {
	if e.Code > codeTryAgain {
		return fmt.Errorf("code %d, expected up to %d", e.Code, codeTryAgain)
	}
	return checkText("text", e.Text)
}

func (m *meetMsg) check() error      { return m.Claims.check() }
func (m *seedMsg) check() error      { return m.Claims.check() }
func (m *failMsg) check() error      { return m.Silent.check() }
func (*updatedMsg) check() error     { return nil }
func (*getStartMsg) check() error    { return nil }
func (*askStartMsg) check() error    { return nil }
func (*noStartMsg) check() error     { return nil }
func (*startedMsg) check() error     { return nil }
func (*acceptMsg) check() error      { return nil }
func (m *stagedMsg) check() error    { return checkText("error", m.Error) }
func (*cancelStageMsg) check() error { return nil }
func (*getRecordsMsg) check() error  { return nil }
func (m *forwardedMsg) check() error { return m.Error.check() }
func (m *moveMsg) check() error      { return m.Slots.check() }
func (m *startMsg) check() error     { return m.Value.check() }
func (m *forwardMsg) check() error   { return m.Slots.check() }
func (m *stageMsg) check() error     { return m.Slots.check() }
func (m *recordsMsg) check() error   { return m.Votes.check() }
func (*inSyncMsg) check() error      { return nil }
func (*failoverMsg) check() error    { return nil }
func (m *consentMsg) check() error   { return checkText("error", m.Error) }

func (m *refusedMsg) check() error {
	if m.Why < refusedOther || m.Why > refusedDuplicate || m.Slot >= NumSlots {
		return fmt.Errorf("why %d and slot %d, expected %d to %d and a slot below %d", m.Why, m.Slot, refusedOther, refusedDuplicate, NumSlots)
	}
	return nil
}

func (m *heartbeat) check() error {
	if m.Flags&^allBeatFlags != 0 {
		return fmt.Errorf("flags %#x, expected none beyond %#x", m.Flags, allBeatFlags)
	}
	return nil
}

func (m *updateMsg) check() error {
	if err := checkAtMostOne("sets of voters", len(m.Voters)); err != nil {
		return err
	}
	if err := checkEach(m.Voters, (*voterSet).check); err != nil {
		return err
	}
	if err := checkEach(m.Peers, (*peerEntry).check); err != nil {
		return err
	}
	if err := checkEach(m.Silent, (*silentEntry).check); err != nil {
		return err
	}
	return m.Slots.check()
}

func (m *digestMsg) check() error {
	want := numBuckets
	if m.Answer {
		want = 0
	}
	if len(m.Table) != want || len(m.Peers) != want {
		return fmt.Errorf("%d and %d buckets, expected %d", len(m.Table), len(m.Peers), want)
	}
	return nil
}

func (m *voteMsg) check() error {
	if m.Why >= numWhys {
		return fmt.Errorf("why %d, expected below %d", m.Why, numWhys)
	}
	if err := checkAtMostOne("records", len(m.Records)); err != nil {
		return err
	}
	return m.Slots.check()
}

func (m *grantMsg) check() error {
	if err := checkAtMostOne("records", len(m.Records)); err != nil {
		return err
	}
	if err := m.Accepted.check(); err != nil {
		return err
	}
	return m.Opened.check()
}

func (m *refuseMsg) check() error {
	if m.Why < refusePromised || m.Why > refuseMoved {
		return fmt.Errorf("why %d, expected %d to %d", m.Why, refusePromised, refuseMoved)
	}
	if err := checkAtMostOne("records", len(m.Records)); err != nil {
		return err
	}
	return m.Accepted.check()
}

func (m *recordMsg) check() error {
	if err := m.Kept.check(); err != nil {
		return err
	}
	return m.Opened.check()
}

func (m *stopMsg) check() error {
	if len(m.Wanted) > maxVotersLimit {
		return fmt.Errorf("%d wanted voters, expected at most %d", len(m.Wanted), maxVotersLimit)
	}
	return nil
}

func (m *stoppedMsg) check() error {
	if len(m.Left) > maxVotersLimit {
		return fmt.Errorf("%d members that have left, expected at most %d", len(m.Left), maxVotersLimit)
	}
	if err := checkEach(m.Left, (*peerEntry).check); err != nil {
		return err
	}
	if err := checkAtMostOne("STARTs", len(m.Starts)); err != nil {
		return err
	}
	if err := checkEach(m.Starts, (*startValue).check); err != nil {
		return err
	}
	return m.Votes.check()
}

// newMessage returns an empty message of a kind to decode into.
func newMessage(k msgKind) (message, error) {
	switch k {
	case msgMeet:
		return new(meetMsg), nil
	case msgSeed:
		return new(seedMsg), nil
	case msgRefused:
		return new(refusedMsg), nil
	case msgHeartbeat:
		return new(heartbeat), nil
	case msgFail:
		return new(failMsg), nil
	case msgUpdate:
		return new(updateMsg), nil
	case msgUpdated:
		return new(updatedMsg), nil
	case msgDigest:
		return new(digestMsg), nil
	case msgVote:
		return new(voteMsg), nil
	case msgGrant:
		return new(grantMsg), nil
	case msgRefuse:
		return new(refuseMsg), nil
	case msgRecord:
		return new(recordMsg), nil
	case msgMove:
		return new(moveMsg), nil
	case msgAccept:
		return new(acceptMsg), nil
	case msgStop:
		return new(stopMsg), nil
	case msgStopped:
		return new(stoppedMsg), nil
	case msgStart:
		return new(startMsg), nil
	case msgStarted:
		return new(startedMsg), nil
	case msgGetStart:
		return new(getStartMsg), nil
	case msgAskStart:
		return new(askStartMsg), nil
	case msgNoStart:
		return new(noStartMsg), nil
	case msgForward:
		return new(forwardMsg), nil
	case msgForwarded:
		return new(forwardedMsg), nil
	case msgStage:
		return new(stageMsg), nil
	case msgStaged:
		return new(stagedMsg), nil
	case msgCancelStage:
		return new(cancelStageMsg), nil
	case msgGetRecords:
		return new(getRecordsMsg), nil
	case msgRecords:
		return new(recordsMsg), nil
	case msgInSync:
		return new(inSyncMsg), nil
	case msgFailover:
		return new(failoverMsg), nil
	case msgConsent:
		return new(consentMsg), nil
	default:
		return nil, fmt.Errorf("slotmesh: message kind %d, expected 1 to %d", k, numMsgKinds-1)
	}
}
