//go:build (amd64 || arm64) && !race

package region

// storeRelease stores v so that a process that loads it also sees all that was stored
// before. The protocols ask for no more than that. sync/atomic only has the
// sequentially consistent store, which is a locked exchange on amd64: half the
// cost of a charge.
//
//go:noescape
func storeRelease(p *uint64, v uint64)
