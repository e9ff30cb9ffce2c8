package web

import (
	"context"
	"slices"
	"sync"

	"ration/internal/fleet"
)

// fragment is an element of the page.
type fragment struct {
	html    string
	changed uint64 // version in which it last changed
}

// list is a group of elements that are added and removed, in display order.
type list struct {
	ids     []string
	changed uint64
}

// board has the fragments of a page, with the version that changed each, for all its viewers.
type board struct {
	feed   *fleet.Feed               // versions of the page
	follow func(ctx context.Context) // draws changes until the context ends

	mu        sync.Mutex
	fragments map[string]fragment // by id; mu guards this and everything below
	lists     map[string]list     // by id
	viewers   int
	stop      context.CancelFunc // stops follow
}

func newBoard(follow func(ctx context.Context)) *board {
	return &board{feed: fleet.NewFeed(), follow: follow, fragments: map[string]fragment{}, lists: map[string]list{}}
}

// enter starts to draw changes, for the first viewer.
func (b *board) enter() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.viewers++; b.viewers == 1 {
		ctx, stop := context.WithCancel(context.Background())
		b.stop = stop
		go b.follow(ctx)
	}
}

func (b *board) leave() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.viewers--; b.viewers == 0 {
		b.stop()
	}
}

// publish makes a new version of the page, if any fragment or list has changed. A fragment that is
// in no list and not in fragments stays unchanged.
func (b *board) publish(fragments map[string]string, lists map[string][]string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	version, _ := b.feed.Latest()
	version++
	changed := false
	for id, html := range fragments {
		if b.fragments[id].html != html {
			b.fragments[id] = fragment{html, version}
			changed = true
		}
	}
	kept := map[string]bool{}
	for id, ids := range lists {
		if l, known := b.lists[id]; !known || !slices.Equal(l.ids, ids) {
			b.lists[id] = list{ids, version}
			changed = true
		}
	}
	if lists != nil {
		for _, l := range b.lists {
			for _, id := range l.ids {
				kept[id] = true
			}
		}
		for id := range b.fragments {
			if _, given := fragments[id]; !given && !kept[id] {
				delete(b.fragments, id)
			}
		}
	}
	if changed {
		b.feed.Advance()
	}
}

// update has the changes for a client.
type update struct {
	Set   map[string]string   `json:"set,omitempty"`   // elements by id
	Lists map[string][]string `json:"lists,omitempty"` // ids of the elements of each list
}

// since returns the changes after a version, the current version, and a channel that is closed at
// the next version.
func (b *board) since(version uint64) (out update, now uint64, next <-chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	out = update{Set: map[string]string{}, Lists: map[string][]string{}}
	for id, f := range b.fragments {
		if f.changed > version {
			out.Set[id] = f.html
		}
	}
	for id, l := range b.lists {
		if l.changed > version {
			out.Lists[id] = l.ids
		}
	}
	now, next = b.feed.Latest()
	return out, now, next
}

// all returns the fragments and lists of the current version, for a whole page.
func (b *board) all() (fragments map[string]string, lists map[string][]string, version uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	fragments, lists = map[string]string{}, map[string][]string{}
	for id, f := range b.fragments {
		fragments[id] = f.html
	}
	for id, l := range b.lists {
		lists[id] = l.ids
	}
	version, _ = b.feed.Latest()
	return fragments, lists, version
}
