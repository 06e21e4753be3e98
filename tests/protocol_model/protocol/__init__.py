"""Finite models of the slot-log protocol, and the explorer that visits every state of one.

The models are the protocol's rules as executable text: no storage, no clock, no bytes. Each takes
a frozen setup that says how many actors and faults there are and which rules hold; a rule switched
off gives a shortest trace to the damage it prevents. They hold in the bounded setups that were
explored; they prove nothing about the code that implements the rules.

    explorer.py        visits all states, breadth first
    slots.py           what the models share: a log is a tuple, a slot is an index
    producer_model.py  two producer attempts race for one slot; seal, readers, cleaning
    consumer_model.py  OPEN and ACK of one consumer task, its successors and its zombies
    release_model.py   deleting input data that registered consumers have read
    purge_model.py     deleting a whole log while an old request is still in flight
    log_*.py           one log producer: OPEN, APPEND, END, its successors and a follower
    batch_*.py         one batch producer with ABORT, SEAL, REPLACE and repair
    run_*.py           starts of a streaming query and write jobs that share a log
    compact_model.py   COMPACT and REPLACE in the log of a sealed stage
    suspect_model.py   SUSPECT in the log of a sealed stage: who notes, checks and mends damage
    unrecognised_model.py  UNRECOGNISED before COMMIT: rows that depend on more than the fingerprint
    lost_replace_model.py  a REPLACE that this log lost, and the ABORT that settles it
    floor_model.py     the purge of a job log's slots; floor_reads_model.py: a look at the floors
    job_model.py       the job log: a stage is entered, reused, given up and released
    damaged_release_model.py  a release whose stage log is damaged, carried out by several
    ending_model.py    the end of a consumer that commits in two steps
    approximate_model.py  a consumer that reserves instead of rewinding
"""
