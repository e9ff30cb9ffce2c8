package policy

import (
	"bufio"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// checkKnown refuses a job to the subordinate users of a user, of which each has thousands, for
// containers: each would be a ration of its own.
func checkKnown(uid int) error {
	f, err := os.Open("/etc/subuid")
	if err != nil {
		return nil
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		owner, from, count := parseSubUID(lines.Text())
		if uid >= from && uid-from < count {
			return fmt.Errorf("user %d is a subordinate of %s (/etc/subuid), and has no ration of its own (give the container a job: ration cdi)", uid, owner)
		}
	}
	return nil
}

// parseSubUID parses a line of /etc/subuid: owner, first, how many. A line that is none has none.
func parseSubUID(line string) (owner string, from, count int) {
	owner, rest, _ := strings.Cut(line, ":")
	first, many, _ := strings.Cut(rest, ":")
	from, err := strconv.Atoi(first)
	if err != nil || from < 0 {
		return owner, 0, 0
	}
	count, err = strconv.Atoi(strings.TrimSpace(many))
	if err != nil || count < 0 {
		return owner, 0, 0
	}
	return owner, from, count
}
