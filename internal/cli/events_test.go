package cli

import (
	"testing"
	"time"

	"ration/check/expect"
)

// Without --since, all known events are printed, and none of them to a command that follows.
func TestSince(t *testing.T) {
	now := time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC)
	for f, want := range map[[2]string]time.Time{
		{"", ""}: {}, {"", "follow"}: now, {"all", "follow"}: {}, {"2h", "follow"}: now.Add(-2 * time.Hour), {"10m", ""}: now.Add(-10 * time.Minute),
		{"2026-01-30", ""}: now.Add(-36 * time.Hour), {"yesterday", ""}: now.Add(-36 * time.Hour), {"2026-01-31 11:00", ""}: now.Add(-time.Hour),
		{"11:00", ""}: now.Add(-time.Hour), {"11:59:58", ""}: now.Add(-2 * time.Second), {"12:00", ""}: now, {"23:50", ""}: now.Add(-12*time.Hour - 10*time.Minute),
		{"10:00", "follow"}: now.Add(-2 * time.Hour), {"2026-01-31T11:00:00+01:00", ""}: now.Add(-2 * time.Hour),
	} {
		got, err := eventsFlags{since: f[0], follow: f[1] != ""}.parseSince(now)
		expect.True(t, err == nil && got.Equal(want), f, got, err)
	}
	for _, bad := range []string{"some day", "-1h", "10", "25:00"} {
		_, err := eventsFlags{since: bad}.parseSince(now)
		expect.True(t, err != nil, bad)
	}
}
