package slotmesh

// mutant names a bug that the tests of the protocol must find. Each is one
// condition left out or turned round, at the place that calls mutated with it.
type mutant uint8

const (
	_ mutant = iota // none

	// Saving and counting.
	mutGrantUnsaved   // a grant leaves before the promise is saved
	mutAcceptUnsaved  // an accept, of a RECORD or a MOVE, before what it accepts
	mutStoppedUnsaved // a voter says that it has stopped before its ballot is saved
	mutStartedUnsaved // that it has START before it has
	mutTwoGrants      // two candidates are granted one number
	mutQuorumLow      // half of the voters is called a majority
	mutOldEntry       // an older entry of the table is accepted
	mutMixedVersions  // answers of two versions are added up
	mutImplicitVoters // the voters are whoever owns slots
	mutJumpAny        // a member is believed whatever number it says

	// Election and opening: R3, R4.
	mutNoLeaseWait  // R3c left out
	mutSameAnyEpoch // two candidates' frames of an equal number are answered
	mutOpenUnnamed  // the opening record names no slots
	mutNoRepair     // R4 completes no half-accepted move
	mutNoRecord     // R4 sends no record
	mutNoBehind     // no "behind" for an older record
	mutNewNoStand   // the primary of a new shard does not stand
	mutServeRestart // serves after a restart without R8
	mutActiveOnly   // R3c not counted from this version of the voters
	mutNoStartWait  // R3c not counted from the voter's start
	mutForceNoWait  // a winner by FORCE serves at once
	mutLockstep     // candidates that outbid each other do so in step

	// Leases: R7.
	mutLeaseAny       // a lease for any claim of a primary
	mutLeaseFull      // 1.0 d instead of 0.9 d
	mutLeaseOldEpoch  // a lease at an older epoch
	mutReplyEpoch     // the epoch is not checked at reply time
	mutReplyLease     // the lease is checked before the run, not at reply time
	mutStopLeases     // a stopped voter still leases
	mutRecordNoRepeat // RECORD is not repeated to a voter that is behind
	mutOneLease       // a voter remembers one lease of a shard

	// Hand-over: R5.
	mutMoveNoStage   // MOVE before the target has the stage
	mutStageAlone    // MOVE before the target's members in sync have it
	mutMoveUnopened  // MOVE before the epoch is opened
	mutMoveBelow     // MOVE accepted below the promise
	mutThawLate      // thaw after MOVE
	mutLateSlot      // a slot learnt late is served at once
	mutStageDropped  // the stage is dropped on a newer epoch of the source
	mutMoveAnyBefore // a MOVE below what is accepted is accepted
	mutForceGives    // a winner by FORCE gives slots away before it may serve

	// Slots that move key by key: R9.
	mutImportsAll      // who imports a slot serves it without ASKING
	mutMigratingServes // who migrates a slot creates what is not there, instead of redirecting
	mutAskEarly        // ASK is said before the replicas of a strict shard know that a key has gone
	mutMarkForgotten   // a replica takes no marks from its primary's log

	// Voters: R11, R12.
	mutStartBare       // START without records
	mutStartSavedVotes // votes once START is saved
	mutStartOtherID    // active with a START of another id
	mutCountInactive   // STARTED counted from members not active
	mutNoHandOut       // START not handed out to members without it
	mutVotersFollow    // voters follow the primaries
	mutForcedIgnored   // voters compared without forced

	// Membership, formation, operators: R9, R13 to R15, Members.
	mutAddrVersion  // the address is under the membership version
	mutFormEarly    // formation before all P·(1+R) are there
	mutFormMerge    // groups that claim one slot merge
	mutFormNoLease  // formation without a first lease
	mutFormServesOn // a former that holds START serves on without a limit
	mutFormLow      // formation by number counts from 1, whatever the epochs are
	mutNoClusterID  // no cluster id in the handshake
	mutReplyEarly   // a command is answered before the peers know
	mutResetEarly   // RESET before the new majority is active
	mutTakeAlive    // an operator's vote for a primary that lives

	// Replicas: R3, R6, R8.
	mutAnyIncarnation  // the incarnation is left out of who is in sync
	mutSameNode        // and out of who is the same candidate
	mutNoInSync        // no in-sync check
	mutConsentNotFinal // who has consented acknowledges on
	mutGrowEarly       // a member is proposed at once, and waited for only when it is in sync
	mutShrinkEarly     // it is not waited for the smaller set to be accepted
	mutJoinBehind      // a member is proposed before it has caught up
	mutInheritedShown  // what was inherited counts as acknowledged
	mutEmptyStands     // a replica without a copy stands
	mutNoRank          // all members stand at once
	mutMayGo           // a replica goes to another primary though nobody else can take its own's place
	mutStandAnyBeat    // any heartbeat of the primary keeps members from standing
	mutOldRecord       // an older record takes the place of a newer one
	mutAckOld          // a member acknowledges entries older than its promise
	mutAskingPaused    // who is handing over lets ASKING into the slots that it imports
	mutStandsStill     // a member that is heard and gets no further with the log stays in sync
	mutGiverLost       // who has consented to a failover is not in sync with its successor
	mutStuckBack       // one that has stood still is waited for again before it has caught up
	mutHalfCounts      // a store of which half has been replaced stays the member that it was
	mutStaysPut        // no replica goes to a primary that has lost its own
	mutIdleSpare       // a spare node backs up nobody
	mutShowsOld        // a replica shows what it has, however old that is
	mutShowsReplaced   // and whatever has become of its primary, or of its primary's slots
	mutWantsLess       // a write is acknowledged though fewer replicas have it than it wants

	// The drivers of the log.
	mutCopyDeposed  // a primary sends the end of a copy though its reign is over
	mutEndUnchecked // a copy takes the place of the old whatever its end says
	mutPastKept     // a store that is half a copy keeps its history
	mutTailKept     // a replica with entries that nobody else has goes on with the others
	mutHaveOld      // what replicas have said in an older epoch counts for WAIT
	mutHeldAlone    // STAGED is said before the members in sync have the stage
	mutInPlaceAlone // the same of a stage in place
	mutSeenAlone    // a read of what was inherited waits for nobody
	mutCopyUnstaged // a copy of everything is one without stages
	mutCopyUnmarked // or without marks
	mutMarkUnseen   // an ASK waits for what has been written alone, not for the mark

	// Failure.
	mutFailAlone    // one voter's word is enough for FAIL
	mutLateBlames   // a tick that comes late moves no deadline
	mutBrokenSpeaks // a node that cannot save any more goes on claiming and beating
	mutHangsVotes   // a node whose disk hangs stays a voter

	numMutants
)

// mutantNames is in the order of the constants.
var mutantNames = [numMutants]string{
	"none",
	"grant-unsaved", "accept-unsaved", "stopped-unsaved", "started-unsaved", "two-grants", "quorum-low", "old-entry", "mixed-versions", "implicit-voters", "jump-any",
	"no-lease-wait", "same-any-epoch", "open-unnamed", "no-repair", "no-record",
	"no-behind", "new-no-stand", "serve-restart", "active-only", "no-start-wait", "force-no-wait", "lockstep",
	"lease-any", "lease-full", "lease-old-epoch", "reply-epoch", "reply-lease", "stop-leases", "record-no-repeat", "one-lease",
	"move-no-stage", "stage-alone", "move-unopened", "move-below", "thaw-late", "late-slot", "stage-dropped", "move-any-before", "force-gives",
	"imports-all", "migrating-serves", "ask-early", "mark-forgotten",
	"start-bare", "start-saved-votes", "start-other-id", "count-inactive", "no-hand-out", "voters-follow", "forced-ignored",
	"addr-version", "form-early", "form-merge", "form-no-lease", "form-serves-on", "form-low", "no-cluster-id", "reply-early", "reset-early", "take-alive",
	"any-incarnation", "same-node", "no-in-sync", "consent-not-final", "grow-early", "shrink-early", "join-behind", "inherited-shown", "empty-stands", "no-rank", "may-go", "stand-any-beat", "old-record", "ack-old", "asking-paused", "stands-still", "giver-lost", "stuck-back", "half-counts",
	"stays-put", "idle-spare", "shows-old", "shows-replaced", "wants-less",
	"copy-deposed", "end-unchecked", "past-kept", "tail-kept", "have-old",
	"held-alone", "in-place-alone", "seen-alone", "copy-unstaged", "copy-unmarked", "mark-unseen",
	"fail-alone", "late-blames", "broken-speaks", "hangs-votes",
}

func (m mutant) String() string { return mutantNames[m] }
