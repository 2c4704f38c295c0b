package compat

import "syscall"

// endWithParent has the kernel end a child when this process ends, in whatever
// way: a test that runs into its timeout cleans nothing up.
func endWithParent() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
