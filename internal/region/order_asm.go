//go:build (amd64 || arm64) && !race

package region

// storeRelease stores v so that a process that loads it also sees everything that was stored
// before. The protocols need no more. sync/atomic has only a sequentially consistent store, which
// is a locked exchange on amd64: half the cost of a charge.
//
//go:noescape
func storeRelease(p *uint64, v uint64)
