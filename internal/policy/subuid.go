package policy

import (
	"fmt"

	"ration/internal/proc"
)

// checkKnown refuses a job to the subordinate users of a user, of which each has thousands, for
// containers: each would be a ration of its own.
func checkKnown(uid int) error {
	if owner, lent := proc.LentTo(uid); lent {
		return fmt.Errorf("user %d is a subordinate of %s (/etc/subuid), and has no ration of its own (give the container a job: ration cdi)", uid, owner)
	}
	return nil
}
