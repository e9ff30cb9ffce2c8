package node

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"ration/internal/safepath"
	"ration/kube/claim"
)

// Record describes a claim that is prepared, or is being prepared or unprepared.
type Record struct {
	Version int        `json:"version"`
	Plan    claim.Plan `json:"plan"`
	// Created has the creation time of each job in Unix nanoseconds; it is empty until the claim is
	// prepared.
	Created []int64 `json:"created,omitempty"`
	// Extra is how much memory of a device is booked for the claim beyond its allocation, by the
	// device's name (Resize).
	Extra map[string]uint64 `json:"extra,omitempty"`
	// Nonce differs in each record that is written. It tells Sweep whether a claim was prepared
	// again after Sweep had read the record.
	Nonce string `json:"nonce"`
}

const recordVersion = 1

// ErrRecord is returned for a record that cannot be understood.
var ErrRecord = errors.New("not a record of a claim")

// created returns when the job of a ration was made, or 0.
func (r *Record) created(ration int) int64 {
	if ration >= len(r.Created) {
		return 0
	}
	return r.Created[ration]
}

// consistsOf reports whether the record describes the same allocation. The pods that it is reserved
// for may differ, and NVML's indexes, which change when a GPU is added or removed.
func (r *Record) consistsOf(p claim.Plan) bool {
	own := r.Plan
	own.Pods, p.Pods = nil, nil
	own.Rations, p.Rations = withoutIndexes(own.Rations), withoutIndexes(p.Rations)
	return reflect.DeepEqual(own, p)
}

func withoutIndexes(rations []claim.Ration) []claim.Ration {
	out := slices.Clone(rations)
	for i := range out {
		out[i].Shares = slices.Clone(out[i].Shares)
		for s := range out[i].Shares {
			out[i].Shares[s].Index = 0
		}
	}
	return out
}

const recordSuffix = ".json"

func (n *Node) recordFile(uid string) string { return filepath.Join(n.State, uid+recordSuffix) }

func (n *Node) read(uid string) (*Record, error) {
	text, err := os.ReadFile(n.recordFile(uid))
	if err != nil {
		return nil, err
	}
	return n.decode(uid, text)
}

func (n *Node) decode(uid string, text []byte) (*Record, error) {
	var r Record
	if err := json.Unmarshal(text, &r); err != nil || r.Version != recordVersion || r.Plan.UID != uid {
		return nil, fmt.Errorf("%s: %w (was it written by another version?)", n.recordFile(uid), ErrRecord)
	}
	return &r, nil
}

// decodedRecord is a record with the text that it was decoded from.
type decodedRecord struct {
	text   []byte
	record *Record
}

func (n *Node) write(r *Record) error {
	staged, err := n.stage(r)
	if err != nil {
		return err
	}
	defer staged.Close()
	return r.wrap(staged.Place())
}

// stage writes a record beside its place. The caller does not wait for the rename to be on disk: after a crash of the
// machine there are no jobs, so a record that was lost is not missed.
func (n *Node) stage(r *Record) (*safepath.Staged, error) {
	r.Version, r.Nonce = recordVersion, rand.Text()
	text, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	staged, err := safepath.Stage(n.recordFile(r.Plan.UID), append(text, '\n'), 0o600)
	return staged, r.wrap(err)
}

func (r *Record) wrap(err error) error {
	if err != nil {
		return fmt.Errorf("recording claim %s/%s: %w", r.Plan.Namespace, r.Plan.Name, err)
	}
	return nil
}

// Record returns the record of a claim.
func (n *Node) Record(uid string) (*Record, error) {
	if err := claim.CheckUID(uid); err != nil {
		return nil, err
	}
	return n.read(uid)
}

// Records returns all valid records. The caller must not change them: on a full node each claim reads those of all
// others, and a text that was decoded before is not decoded again.
func (n *Node) Records() (out []*Record, err error) {
	uids, err := n.recorded()
	before, now := n.decoded.Load(), make(map[string]decodedRecord, len(uids))
	for _, uid := range uids {
		text, e := os.ReadFile(n.recordFile(uid))
		if errors.Is(e, os.ErrNotExist) {
			continue
		}
		if e != nil {
			err = errors.Join(err, e)
			continue
		}
		d := decodedRecord{text: text}
		if before != nil && bytes.Equal((*before)[uid].text, text) {
			d.record = (*before)[uid].record
		}
		if d.record == nil {
			if d.record, e = n.decode(uid, text); e != nil {
				continue // it is of another version
			}
		}
		now[uid] = d
		out = append(out, d.record)
	}
	n.decoded.Store(&now)
	return out, err
}

// recorded returns the UIDs of all claims that have a record.
func (n *Node) recorded() (uids []string, err error) {
	entries, err := os.ReadDir(n.State)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("listing claims: %w", err)
	}
	for _, e := range entries {
		if uid, ok := strings.CutSuffix(e.Name(), recordSuffix); ok && claim.CheckUID(uid) == nil {
			uids = append(uids, uid)
		}
	}
	return uids, nil
}

// removeFile removes a file, if there is one.
func removeFile(path string) error {
	err := os.Remove(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = safepath.SyncFolder(filepath.Dir(path))
	}
	return err
}

// Jobs returns the names of the claim's jobs.
func (r *Record) Jobs() (names []string) {
	for i := range r.Plan.Rations {
		names = append(names, jobName(r.Plan, i))
	}
	return names
}
