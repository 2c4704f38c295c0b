//go:build !linux

package compat

import "syscall"

func endWithParent() *syscall.SysProcAttr { return nil }
