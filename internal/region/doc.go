// Package region is the shared memory that all processes of a job account in:
// it opens and initialises the file, claims slots, charges and returns bytes
// exactly and without a lock, gives back what dead processes held, and reads
// all of it in one piece while others write.
//
// docs/protocols.md gives each protocol's invariant, its steps and what a crash
// leaves; the code here follows its words. shim/region is the same in C, on
// the same files.
//
// Memory order. Every shared word is read and written through sync/atomic or
// storeRelease. The comments name the partner of each release: the load, here
// or in C, that relies on it.
package region
