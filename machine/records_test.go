package machine

import (
	"testing"

	"ration/check/expect"
)

// A run that has ended is known by the copy of its region beside the user's record. While both are there it is one job,
// and no record takes the identity of a run, or of another record.
func TestRecordsOfRuns(t *testing.T) {
	const run = "/run/ration/user-4001-train/region"
	created := timeOf(10)
	record := Job{Path: "/run/user/4001/ration/train/region", UID: 4001, State: Ended, Created: created, countedIn: run}
	record.ranAs = record.runOfRecord()
	expect.Equal(t, record.ID(), JobID{run, created}, "the record of a run")

	live := Job{Path: run, UID: 4001, State: Running, Created: created}
	m := Machine{Jobs: []Job{record, live}}
	m.dropRecords()
	expect.True(t, len(m.Jobs) == 1 && m.Jobs[0].State == Running, "while the run is there", m.Jobs)

	other := record
	other.Path = "/tmp/ration-4001/train/region"
	m = Machine{Jobs: []Job{record, other, {Path: "elsewhere"}}}
	m.dropRecords()
	expect.True(t, len(m.Jobs) == 2 && m.Jobs[0].Path == record.Path, "after the run", m.Jobs)

	for name, claim := range map[string]Job{
		"of another user": {Path: record.Path, UID: 4002, countedIn: run},
		"of another name": {Path: "/run/user/4001/ration/other/region", UID: 4001, countedIn: run},
		"of all programs": {Path: record.Path, UID: 4001, countedIn: "/run/ration/user-4001/region"},
		"elsewhere":       {Path: record.Path, UID: 4001, countedIn: "/tmp/user-4001-train/region"},
		"of no policy":    {Path: record.Path, UID: 4001},
	} {
		expect.Equal(t, claim.runOfRecord(), "", name)
	}
}
