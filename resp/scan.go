package resp

func scanCommands() []Command { return nil }
