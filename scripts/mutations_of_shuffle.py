"""Naive variants of `shuffle` and `serialization`. N-numbers are those of the seed list."""

from mutations import CRASHES, VIEWS, Mutation

BUFFERS = "tests/unit/serialization/test_buffers.py"
QUEUE = "tests/unit/shuffle/test_buffer_queue.py"
OPEN = f"{VIEWS}test_open_and_fence.py"
ACK = f"{VIEWS}test_acknowledge.py {VIEWS}test_outcomes.py {VIEWS}test_effects.py"
READ = f"{VIEWS}test_reading.py"
APPROXIMATE = f"{VIEWS}test_approximate.py"
FOLLOW = f"{VIEWS}test_following_view.py"
ENDING = "tests/pipelines/test_ending.py"
FLOOR = "tests/unit/shuffle/test_job_floor.py"

MUTATIONS = (
    Mutation(
        "N1",
        "the resume point is where the bytes handed out end, inside a record",
        "shuffle/consume/delivered.py",
        "        for producer, ordinal in self._cut.items():",
        "        for producer, ordinal in ():",
        f"{READ} -k raw_buffers",
    ),
    Mutation(
        "N2",
        "what was delivered is acknowledged, when a view ends",
        "shuffle/consume/view.py",
        "        self._source.stop()\n        if not self._task.held.fenced:\n            # the",
        "        self._source.stop()\n"
        "        if not self._task.held.fenced and not self._task.ended:\n"
        "            self._task.ack({self._key: self.position})\n            # the",
        f"{OPEN} -k last_acknowledged",
    ),
    Mutation(
        "N3",
        "outputs are published in one record and acknowledged in the next",
        "shuffle/consume/task.py",
        "        whole = self.held.whole_now() if full else self.held.whole()\n",
        "        if outputs:\n            now = self.held.state\n"
        "            self.held.write(Ack(now.owner, now.epoch, None, (), tuple(outputs), now.state,"
        " now.marker_floor, now.pending))\n            outputs, before = (), self.held.state\n"
        "        whole = self.held.whole_now() if full else self.held.whole()\n",
        f"{CRASHES} -k exact",
    ),
    Mutation(
        "N4",
        "a view is known by a number that another process has, too",
        "shuffle/consume/open_view.py",
        "record_id=ids.new_id(),",
        'record_id="0" * 32,',
        OPEN,
    ),
    Mutation(
        "N5",
        "create looks first and then writes",
        "shuffle/storage/local.py",
        "            path.hardlink_to(hidden)\n",
        "            if path.exists():\n                return False\n"
        "            hidden.replace(path)\n"
        "            hidden.touch()\n",
        "tests/storage/test_local_storage.py tests/storage/test_create_race.py",
    ),
    Mutation(
        "N6",
        "a storage that no other process sees is taken for one that all share",
        "shuffle/storage/exclusive_create.py",
        "    driver = DRIVERS.get(protocol)",
        '    driver = DRIVERS.get("s3" if protocol == "memory" else protocol)',
        "tests/storage/test_open_storage.py",
    ),
    Mutation(
        "N7",
        "a carried record ends where a buffer is not full of it",
        "serialization/buffers.py",
        "    return Trimmed(buffer.data[buffer.carry_bytes :], done=buffer.carry_ends)",
        "    return Trimmed(buffer.data[buffer.carry_bytes :],"
        " done=buffer.carry_bytes < buffer.data.nbytes or buffer.data.nbytes < 56)",
        f"{BUFFERS} {QUEUE}",
    ),
    Mutation(
        "N8",
        "a marker ends the search for a whole record",
        "serialization/buffers.py",
        "        return Trimmed(buffer.data[read_bytes:], done=False)",
        "        return Trimmed(buffer.data[read_bytes:], done=True)",
        f"{BUFFERS} {QUEUE}",
    ),
    Mutation(
        "N8",
        "a marker between the frames of a record ends the record",
        "serialization/buffers.py",
        "                if header.kind is FrameKind.MARKER:  # also",
        "                if header.kind is FrameKind.MARKER and not self._in_record:  # also",
        f"{BUFFERS} {QUEUE}",
    ),
    Mutation(
        "N9",
        "a queue serves whoever asks",
        "shuffle/read/buffer_queue.py",
        "                if owner != self._owner:",
        "                if not owner:",
        f"{QUEUE} {OPEN}",
    ),
    Mutation(
        "N9",
        "a superseded view of the same process is not told",
        "shuffle/consume/open_view.py",
        "        if other.epoch < newest:",
        "        if other.epoch > newest:",
        OPEN,
    ),
    Mutation(
        "N10",
        "what a listing shows below the consumer's name is what it published",
        "shuffle/consume/view.py",
        "        return self._task.held.state.outputs\n",
        "        known = {one.key: one for one in self._task.held.state.outputs}\n"
        "        listed = self._task.storage.list(self._task.path.outputs_prefix)\n"
        "        return tuple(known.get(i.key, OutputRef(i.key, i.size_bytes, 0, b''))"
        " for i in listed)\n",
        f"{ACK} -k outputs_count",
    ),
    Mutation(
        "N10",
        "a listing says where a log ends",
        "shuffle/log/slot_log.py",
        "        if self.read(hint) is None:\n",
        "        listed = [i.key for i in self.storage.list(self.prefix)]\n"
        "        return 1 + max((int(key[-10:]) for key in listed), default=-1)\n"
        "        if self.read(hint) is None:\n",
        "tests/unit/shuffle/test_slot_log.py",
    ),
    Mutation(
        "pipelines",
        "OPEN forgets that the end was prepared",
        "shuffle/consume/log.py",
        "            ending=state.ending,\n",
        "",
        f"{ENDING} -k crash_behind",
    ),
    Mutation(
        "N13",
        "a view goes on where a view of this process stopped, whatever the log says",
        "shuffle/consume/open_view.py",
        '    usable = resume == "approximate" and left.way',
        "    same = True\n    usable = left.way",
        f"{OPEN} {READ} {APPROXIMATE}",
    ),
    Mutation(
        "N14",
        "a backoff remembers the calls before: a new one begins with their delay",
        "shuffle/storage/retrying.py",
        "attempt, unknown, strays = self._begin(), 1, False, 0",
        "attempt, unknown, strays = self._begin(), 1 + self._counts.retries, False, 0",
        "tests/unit/shuffle/test_retrying_storage.py",
    ),
    Mutation(
        "N15",
        "any end of a loop is the end of the input",
        "shuffle/consume/view.py",
        "        if self._ended is None:\n            raise InvalidInputError(",
        "        if self._way is None:\n            raise InvalidInputError(",
        ACK,
    ),
    Mutation(
        "N18",
        "the end of a producer counts as the checkpoint with the highest number",
        "shuffle/consume/view.py",
        "                if isinstance(item.marker, Checkpoint):\n"
        "                    if item.marker.id <= self._task.held.state.marker_floor:\n"
        "                        continue\n"
        "                    self._passed = max(self._passed, item.marker.id)\n",
        "                number = getattr(item.marker, 'id', 2**63 - 1)\n"
        "                if number <= self._task.held.state.marker_floor:\n"
        "                    continue\n"
        "                self._passed = max(self._passed, number)\n",
        FOLLOW,
    ),
    Mutation(
        "N20",
        "what one view left in this process counts for the next: its start is the last position",
        "shuffle/read/buffer_queue.py",
        "            self._sequence = self._handed_bytes = self.trimmed_bytes = 0\n",
        "            pass\n",
        QUEUE,
    ),
    Mutation(
        "N21",
        "a create that is refused has lost, without a look at what stands there",
        "shuffle/log/slot_log.py",
        "if isinstance(answer, Created) or answer.existing == stored:",
        "if isinstance(answer, Created):",
        ACK,
    ),
    Mutation(
        "N21",
        "a record of unknown outcome makes room for another one",
        "shuffle/consume/log.py",
        "= self._may_stand or isinstance(error, OutcomeUnknownError)\n",
        "= False\n",
        ACK,
    ),
    Mutation(
        "N22",
        "a successor starts where it looked before its OPEN, though another record came first",
        "shuffle/consume/log.py",
        "        said = opening(state)\n",
        "        said = opening(before)\n",
        OPEN,
    ),
    Mutation(
        "N22",
        "a view starts by the log alone and wins no slot before it reads",
        "shuffle/consume/log.py",
        "    before = read_resume_set(log)\n",
        "    before = read_resume_set(log)\n"
        "    if before.owner:\n        return HeldLog(log, before)\n",
        OPEN,
    ),
    Mutation(
        "N23",
        "an effect happens before its record is won",
        "shuffle/consume/task.py",
        "        whole = self.held.whole_now() if full else self.held.whole()\n",
        "        whole = self.held.whole_now() if full else self.held.whole()\n"
        "        for mine in self._pending(effect):\n"
        "            if self.on_effect: self.on_effect(mine.token, mine.payload)\n"
        "            self._performed.add(mine.token)\n",
        ACK,
    ),
    Mutation(
        "N23",
        "a successor does not replay what may not have happened",
        "shuffle/consume/log.py",
        "            pending=state.pending,\n",
        "            pending=(),\n",
        ACK,
    ),
    Mutation(
        "N24",
        "the state before is deleted as soon as a new one is written",
        "shuffle/consume/task.py",
        "            self.storage.put(key, [state])\n",
        "            self.storage.put(key, [state])\n"
        "            if isinstance(self.held.state.state, StateRef):\n"
        "                self.storage.delete([self.held.state.state.key])\n",
        f"{CRASHES} {ACK}",
    ),
    Mutation(
        "full records",
        "a full acknowledgement forgets what is reserved",
        "shuffle/consume/log.py",
        '            reached if state.resume == "approximate" else (),',
        "            (),",
        APPROXIMATE,
    ),
    Mutation(
        "full records",
        "a reservation is never a full record",
        "shuffle/consume/task.py",
        "        if whole is None:\n            inputs = (cursor(",
        "        if state:\n            inputs = (cursor(",
        APPROXIMATE,
    ),
    Mutation(
        "full records",
        "a full acknowledgement names the new outputs only",
        "shuffle/consume/task.py",
        "(*before.outputs, *outputs) if whole else tuple(outputs)",
        "tuple(outputs)",
        ACK,
    ),
    Mutation(
        "approximate",
        "records are handed out first and reserved afterwards",
        "shuffle/consume/task.py",
        "        goal = max(upto, min(end, upto + self.settings.reserve_records))",
        "        goal = max(0, upto - 1)",
        APPROXIMATE,
    ),
    Mutation(
        "approximate",
        "release says nothing of what was delivered",
        "shuffle/consume/task.py",
        '        if self.held.state.resume == "approximate":\n            with',
        '        if self.held.state.resume == "never":\n            with',
        APPROXIMATE,
    ),
    Mutation(
        "loops",
        "a loop that was left in the middle of a batch goes on with the next batch",
        "shuffle/consume/view.py",
        "        if self._last is not None:  # a loop",
        "        if False:  # a loop",
        f"{ACK} {OPEN}",
    ),
    Mutation(
        "positions",
        "what was never handed out can be acknowledged",
        "shuffle/consume/delivered.py",
        "        if beyond is not None:",
        "        if beyond == -1:",
        ACK,
    ),
    Mutation(
        "positions",
        "an acknowledgement may go back",
        "shuffle/consume/task.py",
        "        if behind is not None:",
        "        if behind == -1:",
        ACK,
    ),
    Mutation(
        "reconciliation",
        "the end of the feed is the end of the input",
        "shuffle/consume/delivered.py",
        "        if end.records is not None and records != end.records:",
        "        if end.records == -1:",
        READ,
    ),
    Mutation(
        "reconciliation",
        "a gap in the ordinals is passed over",
        "shuffle/consume/delivered.py",
        "        if first_ordinal > delivered:",
        "        if first_ordinal < 0:",
        READ,
    ),
    Mutation(
        "seek",
        "a resumed view reads from the start of the extent",
        "shuffle/read/feed.py",
        "clip(extent, positions.get(extent.producer, AT_START))",
        "clip(extent, AT_START)",
        READ,
    ),
    Mutation(
        "seek",
        "what was reserved says nothing of where it stands",
        "shuffle/consume/task.py",
        "producer: begin.at(goal)}",
        "producer: ProducerPosition(goal)}",
        f"{VIEWS}test_seek.py -k approximate",
    ),
    Mutation(
        "seek",
        "what was passed in raw buffers says nothing of where it stands",
        "shuffle/consume/delivered.py",
        "            self.producers[producer] = begin.at(buffer.end_ordinal)\n",
        "            begin = ProducerPosition(0, begin.segment, begin.slot)\n"
        "            self.producers[producer] = begin.at(buffer.end_ordinal)\n",
        f"{VIEWS}test_seek.py -k raw",
    ),
    Mutation(
        "holes",
        "whatever stands behind one's own record is a successor's",
        "shuffle/log/slot_log.py",
        "    if found <= mine:",
        "    if found < 0:",
        f"{VIEWS}test_holes.py",
    ),
    Mutation(
        "budget",
        "as many buffers are fetched as there are",
        "shuffle/read/buffer_queue.py",
        "            if fetches and size + length > limit:",
        "            if fetches and size + length > 1000 * limit:",
        READ,
    ),
    Mutation(
        "generation",
        "a launcher of a lower generation opens a view",
        "shuffle/consume/log.py",
        "        if state.generation > generation:",
        "        if state.generation < 0:",
        OPEN,
    ),
    Mutation(
        "errors",
        "damage is reported without a look at the fence",
        "shuffle/consume/view.py",
        "            self._task.held.look()\n",
        "",
        READ,
    ),
    Mutation(
        "requests",
        "a reader asks for everything at once",
        "shuffle/read/sealed_reader.py",
        "most_bytes=min(most, GROUP_BYTES) if far else most",
        "most_bytes=1 << 40",
        "tests/unit/shuffle/test_request_counts.py",
    ),
    Mutation(
        "floor",
        "what was won below a floor of the job log is believed",
        "shuffle/log/job_floor.py",
        "                self._refuse_litter(sure)\n            except",
        "                pass\n            except",
        FLOOR,
    ),
    Mutation(
        "floor",
        "an empty slot below a floor of the job log is its end",
        "shuffle/log/job_floor.py",
        "            floor = self.floor_above(state.next_slot if sure is None else sure)\n",
        "            floor = None\n",
        FLOOR,
    ),
    Mutation(
        "floor",
        "of several slots that were won unsure only the last one is asked about",
        "shuffle/log/job_log.py",
        "            sure, unsure = self._sure, self._state.next_slot\n",
        "            sure, unsure = self._state.next_slot, self._state.next_slot + 1\n",
        FLOOR,
    ),
    Mutation(
        "floor",
        "slots of the job log go without a floor",
        "shuffle/release/purge.py",
        "        put_floor(storage, higher or floor, ids.new_id())\n"
        "    below, gone = lower_floor(storage, job), 0\n",
        "        pass\n    below, gone = (higher or floor).next_slot, 0\n",
        FLOOR,
    ),
    Mutation(
        "extents",
        "a producer that the index misses has no rows",
        "shuffle/read/sealed_reader.py",
        '        if not np.array_equal(np.unique(entries["producer"]), np.asarray(expected)):',
        "        if not len(expected):",
        "tests/unit/shuffle/test_sealed_reader.py",
    ),
    Mutation(
        "retention",
        "what registers between the look and the release is no use of its stage",
        "shuffle/release/unused.py",
        "path, ids, because, unless=_used_since(unused)):",
        "path, ids, because):",
        "tests/unit/shuffle/test_unused.py",
    ),
)
