package resp

import "slices"

// Commands is the table of what a server knows by default, a copy to change at
// will.
func Commands() []Command {
	return withFacts(slices.Concat(
		stringCommands(),
		bitmapCommands(),
		keyCommands(),
		hashCommands(),
		listCommands(),
		setCommands(),
		sortedSetCommands(),
		transactionCommands(),
		connectionCommands(),
		clusterCommands(),
		migrateCommands(),
		serverCommands(),
		replicationCommands(),
		pubSubCommands(),
		scriptCommands(),
	))
}
