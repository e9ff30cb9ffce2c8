//go:build !cgo

package launch

// RestoreIgnoredSignals does nothing: without C nothing runs before Go, which itself
// leaves SIGHUP and SIGINT ignored, the ones that nohup and a shell's & are about.
func RestoreIgnoredSignals() {}
