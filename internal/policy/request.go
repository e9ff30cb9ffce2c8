package policy

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"time"

	"ration/internal/connlimit"
	"ration/internal/launch"
	"ration/internal/limit"
	"ration/internal/region"
)

// Ask asks the policy's service for another ration, for this user.
func Ask(r limit.Limits) error {
	_, err := request(r.String())
	return err
}

// Move asks the policy's service to move this user's ration to the devices in a list, or to others than now
// if the list is empty. It returns the new place.
func Move(list string) (region.Place, error) {
	answer, err := request(strings.TrimSpace(moveRequest + " " + list))
	if err != nil {
		return 0, err
	}
	return region.ParsePlace(answer)
}

// Room asks the policy's service on which devices this user's ration can be had now, if necessary after others have lost
// theirs.
func Room() ([]int, error) {
	answer, err := request(roomRequest)
	if err != nil || answer == "" {
		return []int{}, err
	}
	at, err := region.ParsePlace(answer)
	return at.Devices(), err
}

// request sends a request of this user. It returns the answer without its ok.
func request(words string) (string, error) {
	c, err := connlimit.Dial(Socket, requestTimeout)
	if _, none := os.Lstat(InForceFile); err != nil && errors.Is(none, fs.ErrNotExist) {
		return "", disabled()
	}
	if err != nil {
		return "", fmt.Errorf("asking for a ration: %w", launch.ServiceError(err))
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(2 * requestTimeout))
	if _, err := fmt.Fprintf(c, "%d %s\n", os.Getuid(), words); err != nil {
		return "", fmt.Errorf("asking for a ration: %w", err)
	}
	answer, err := io.ReadAll(io.LimitReader(c, 4096))
	if err != nil || len(answer) == 0 {
		return "", fmt.Errorf("asking for a ration: no answer: %w", errors.Join(err, io.ErrUnexpectedEOF))
	}
	text := strings.TrimSpace(string(answer))
	if rest, ok := strings.CutPrefix(text+" ", "ok "); ok {
		return strings.TrimSpace(rest), nil
	}
	return "", errors.New(text)
}
