package node

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"ration/internal/job"
	"ration/kube/claim"
)

// Sweep removes what is left of claims that are gone: the kubelet was told to forget them, or died
// before it had them unprepared. gone is asked for each claim on this node; where it has an error
// the claim is kept. A job in which a process lives is kept as well: then the answer was wrong, or the
// process outlived its pod. It also removes files that were being written when their writer died.
func (n *Node) Sweep(gone func(claim.Plan) (bool, error)) (removed []string, err error) {
	unlock, err := n.lock()
	if err != nil {
		return nil, err
	}
	defer unlock()
	for _, folder := range []string{n.State, n.CDI} {
		err = errors.Join(err, removeTemporary(folder))
	}
	all, e := n.known()
	err = errors.Join(err, e)
	for uid, p := range all {
		is, e := gone(p)
		if e == nil && is {
			if e = n.remove(&Record{Plan: claim.Plan{UID: uid}}); e == nil {
				removed = append(removed, uid)
			}
		}
		if e != nil {
			err = errors.Join(err, fmt.Errorf("claim %s: %w", uid, e))
		}
	}
	return removed, err
}

// known returns all claims of which something is on this node, by UID. One whose record is missing or
// cannot be understood has its name from its job, or none.
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
	files, err := filepath.Glob(filepath.Join(folder, temporary+"*"))
	for _, f := range files {
		err = errors.Join(err, removeFile(f))
	}
	return err
}
