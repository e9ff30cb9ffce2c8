package humanfmt

// ClaimMark is before what only a job says of its processes.
const ClaimMark = "?"

// ClaimNote explains ClaimMark, below what it is in.
const ClaimNote = ClaimMark + " marks what only the job's own file says: the process has ended, cannot be seen from here, or could not be checked in time"

// Claim marks a PID or a name that only a job says, and leaves one that the kernel confirms
// as it is.
func Claim(text string, verified bool) string {
	if verified {
		return text
	}
	return ClaimMark + text
}
