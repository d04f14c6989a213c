"""What this peer knows of the others: one table (table.py), and all times of it in one list (times.py).

Two rules hold here and nowhere else:

1. **A voice.** Only a peer that has brought weight to an average with this one, or whose ticket vouches for it, has a
   say in which epoch the run is at; and one account has one voice. Until one of the peers that are here has a voice,
   as at a newcomer, all of them are heard, but see rule 2.
2. **A state in hand.** Reports move no peer to an epoch: only an update of its own or a downloaded state does, with the
   epochs that can have ended during the download (`furthest_epoch`). What others report makes a peer try to download a
   state, and it trains on if none comes.
"""
