package humanfmt

// ClaimMark is put before a text that only a job claims about its processes.
const ClaimMark = "?"

// ClaimNote explains ClaimMark, below an output that contains it.
const ClaimNote = ClaimMark + " marks what only the job's own file says: the process has ended, cannot be seen from here, or could not be checked in time"

// Claim marks a PID or a name that only a job claims. It does not change one that the kernel
// confirms.
func Claim(text string, verified bool) string {
	if verified {
		return text
	}
	return ClaimMark + text
}
