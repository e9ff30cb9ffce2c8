//go:build !cgo

package launch

// RestoreIgnoredSignals does nothing: without C no code runs before Go. Go itself leaves SIGHUP and
// SIGINT ignored, which are the signals of nohup and of a shell's &.
func RestoreIgnoredSignals() {}
