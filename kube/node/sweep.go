package node

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"ration/internal/job"
	"ration/internal/safepath"
	"ration/kube/claim"
)

// Sweep removes the remains of claims that do not exist any more: the kubelet was told to forget
// them, or died before it unprepared them. It calls gone for each claim on this node, without the
// lock, because the answer may take long. It keeps a claim that was prepared in the meantime, a
// claim for which gone returns an error, and a claim with a living process in its job: then the
// answer was wrong, or the process outlived its pod. Sweep also removes temporary files whose
// writer died.
func (n *Node) Sweep(gone func(claim.Plan) (bool, error)) (removed []string, err error) {
	all, err := n.look()
	for uid, seen := range all {
		is, e := gone(seen.plan)
		if e == nil && is {
			is, e = n.removeUnchanged(uid, seen)
		}
		if e != nil {
			err = errors.Join(err, fmt.Errorf("claim %s: %w", uid, e))
		} else if is {
			removed = append(removed, uid)
		}
	}
	return removed, err
}

// seen is a claim with remains on this node. If its record is missing or invalid, its name comes
// from its job, or is unknown.
type seen struct {
	plan   claim.Plan
	record string // content of the record file; empty if there is none
}

// look returns all claims with remains on this node, by UID.
func (n *Node) look() (map[string]seen, error) {
	unlock, err := n.lockAll()
	if err != nil {
		return nil, err
	}
	defer unlock()
	for _, folder := range []string{n.State, n.CDI} {
		err = errors.Join(err, removeTemporary(folder))
	}
	known, e := n.known()
	out := map[string]seen{}
	for uid, p := range known {
		text, e := n.recordText(uid)
		err, out[uid] = errors.Join(err, e), seen{p, text}
	}
	return out, errors.Join(err, e)
}

// removeUnchanged removes the remains of a claim, unless it was prepared again after it was seen.
func (n *Node) removeUnchanged(uid string, s seen) (removed bool, err error) {
	l, err := n.lock(uid)
	if err != nil {
		return false, err
	}
	defer l.unlock()
	if text, err := n.recordText(uid); err != nil || text != s.record {
		return false, err
	}
	return true, n.remove(&Record{Plan: claim.Plan{UID: uid}})
}

func (n *Node) recordText(uid string) (string, error) {
	text, err := os.ReadFile(n.recordFile(uid))
	if errors.Is(err, os.ErrNotExist) {
		return "", nil
	}
	return string(text), err
}

// known is look without the lock and without the content of the records.
func (n *Node) known() (map[string]claim.Plan, error) {
	out := map[string]claim.Plan{}
	uids, err := n.recorded()
	for _, uid := range uids {
		out[uid] = claim.Plan{UID: uid}
		if r, e := n.read(uid); e == nil {
			out[uid] = r.Plan
		}
	}
	specs, e := filepath.Glob(filepath.Join(n.CDI, specPrefix+"*"+specSuffix))
	err = errors.Join(err, e)
	for _, file := range specs {
		uid := strings.TrimSuffix(strings.TrimPrefix(filepath.Base(file), specPrefix), specSuffix)
		if _, ok := out[uid]; !ok && claim.CheckUID(uid) == nil {
			out[uid] = claim.Plan{UID: uid}
		}
	}
	folders, e := os.ReadDir(job.Folder())
	if !errors.Is(e, os.ErrNotExist) {
		err = errors.Join(err, e)
	}
	for _, f := range folders {
		uid, ok := claimOf(f.Name())
		if !ok || out[uid].Name != "" {
			continue
		}
		out[uid] = claim.Plan{UID: uid}
		if k := job.ReadKubernetes(f.Name()); k != nil {
			out[uid] = claim.Plan{UID: uid, Namespace: k.Namespace, Name: k.Claim}
		}
	}
	return out, err
}

func removeTemporary(folder string) error {
	files, err := filepath.Glob(filepath.Join(folder, safepath.TempPrefix+"*"))
	for _, f := range files {
		err = errors.Join(err, removeFile(f))
	}
	return err
}
