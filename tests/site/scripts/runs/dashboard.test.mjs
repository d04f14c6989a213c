// The dashboard's lines, tables, pictures and volunteers; the home page's summary of a run.

import assert from "node:assert/strict";
import { test } from "node:test";

import { heldOutText, lossLines, lossSummary, lossTable, seriesOf, speedLines, volunteerLines, volunteerTable } from "../../../../site/javascripts/dashboard/lines.mjs";
import { tilesOf } from "../../../../site/javascripts/dashboard/page.mjs";
import { contributorsText, eventsToTell, placesOf, volunteerTexts } from "../../../../site/javascripts/dashboard/people.mjs";
import { altOf, chosenOf, columnsIn, epochsTold, marksOf } from "../../../../site/javascripts/dashboard/pictures.mjs";
import { emptyFeed } from "../../../../site/javascripts/runs/feed.mjs";
import { idIn, pageOf } from "../../../../site/javascripts/volunteer/address.mjs";
import { missedTexts, sentenceOf, tilesOf as volunteerTiles } from "../../../../site/javascripts/volunteer/page.mjs";
import { curvePaths } from "../../../../site/javascripts/home/glance.mjs";

const FEED = {
  ...emptyFeed("known"),
  now: 1000,
  state: { status: "running" },
  epochs: [1, 2, 3].map((epoch) => ({ epoch, time: 0, loss: epoch === 1 ? null : 5 - epoch, active_peers: epoch, samples: 1250, samples_per_second: 10 })),
  peers: { ada: [[2, 3.5], [3, 2.5]], "<b>": [[3, 9]] },
  volunteers: [{ name: "cy" }, { name: "ada" }],
};
test("each volunteer has a line, and the last line is the whole run's", () => {
  const [ada, tags, all] = lossLines(FEED, ["cy"]);
  assert.deepEqual(ada, { name: "ada", points: [[2, 3.5], [3, 2.5]], colour: "series-2" });
  assert.deepEqual([tags.name, tags.points], ["<b>", [[3, 9]]]);
  assert.deepEqual(all, { name: "all", points: [[1, null], [2, 3], [3, 2]], colour: "ink", strong: true });
});

test("checkpoints' losses on held-out samples are points of their own", () => {
  const feed = { ...FEED, run: { kind: "text" }, held_out: [{ epoch: 1, loss: 4, samples: 9, tokens: 90 }, { epoch: 3, loss: 2.5, samples: 10, tokens: 1250 }] };
  const [dots, all] = lossLines(feed, []).slice(-2);
  assert.deepEqual(dots, { name: "held out", points: [[1, 4], [3, 2.5]], colour: "ink", dots: true });
  assert.equal(all.name, "all");
  assert.deepEqual(lossTable(feed).head, ["Epoch", "All", "Held out", "ada", "<b>"]);
  assert.deepEqual(lossTable(feed).body, [[3, "2", "2.5", "2.5", "9"], [2, "3", "–", "3.5", "–"], [1, "–", "4", "–", "–"]]);
  assert.match(heldOutText(feed), /2\.5 at epoch 3, perplexity 12\.2, over 10 held-out samples \(1\u202f250 tokens\)\.$/);
  const ofPictures = heldOutText({ ...feed, run: { kind: "pictures", reconstruction_error: 0.01234 } });
  assert.match(ofPictures, /at epoch 3, over 10 .* mean squared error of 0\.012, of colours from 0 to 1\.$/);
  assert.equal(heldOutText(FEED), "");
  const scored = { ...feed, run: { kind: "pictures" }, held_out: [{ ...feed.held_out[0], clip_score: 0.2512 }, { ...feed.held_out[1], clip_score: null }] };
  assert.match(heldOutText(scored), /CLIP score of pictures of held-out captions: 0\.251 at epoch 1 /);
  assert.deepEqual(lossTable(scored).head, ["Epoch", "All", "Held out", "CLIP score", "ada", "<b>"]);
  assert.deepEqual(lossTable(scored).body[2], [1, "–", "4", "0.2512", "–", "–"]);
});

test("a volunteer keeps its colour, and the ninth gets the first colour again", () => {
  const seen = [];
  const series = [..."abcdefghia"].map((name) => seriesOf(seen, name));
  assert.deepEqual(series, [1, 2, 3, 4, 5, 6, 7, 8, 1, 1]);
});

test("volunteers and speed are lines over the epochs", () => {
  assert.deepEqual(volunteerLines(FEED)[0].points, [[1, 1], [2, 2], [3, 3]]);
  assert.deepEqual(speedLines(FEED)[0].points, [[1, 10], [2, 10], [3, 10]]);
});

test("tables begin with the newest epoch, and show a dash for an unknown value", () => {
  assert.deepEqual(lossTable(FEED).head, ["Epoch", "All", "ada", "<b>"]);
  assert.deepEqual(lossTable(FEED).body, [[3, "2", "2.5", "9"], [2, "3", "3.5", "–"], [1, "–", "–", "–"]]);
  assert.deepEqual(volunteerTable(FEED).body[0].toSpliced(1, 1), [3, 3, "1\u202f250", "10"]);
  const long = { ...FEED, epochs: Array.from({ length: 900 }, (_, epoch) => ({ ...FEED.epochs[0], epoch })) };
  assert.deepEqual([lossTable(long).body.length, lossTable(long).body[0][0]], [500, 899]);
});

test("the losses in words name the first, the last, and the number of volunteers", () => {
  assert.equal(lossSummary(FEED), "Loss per epoch: 3 at epoch 2, 2 at epoch 3, with a line for each of 3 volunteers.");
  assert.equal(lossSummary({ ...FEED, epochs: [] }), "");
});

test("tiles show dashes before the first epoch", () => {
  const state = { epoch: null, loss: null, active_peers: 0, samples_per_second: null, total_samples: 0 };
  const run = { title: "Shapes", total_epochs: 40, parameters: 1e6 };
  const tiles = tilesOf({ ...FEED, run, state });
  assert.deepEqual([tiles.epoch, tiles.loss, tiles.speed, tiles.parameters], ["–", "–", "–", "1\u202f000\u202f000"]);
  assert.equal(tilesOf({ ...FEED, run, state: { ...state, epoch: 3 } }).epoch, "3 of 40");
});

test("tiles of a run that is over say how many took part, and its median speed", () => {
  const state = { status: "finished", epoch: 3, loss: 2, active_peers: 0, samples_per_second: null, total_samples: 9 };
  const speeds = [null, 30, 10, 14].map((samples_per_second) => ({ ...FEED.epochs[0], samples_per_second }));
  const tiles = tilesOf({ ...FEED, run: { total_epochs: 3 }, state, epochs: speeds });
  assert.deepEqual([tiles.active, tiles["active-label"], tiles.speed], ["2", "Volunteers in all", "14"]);
  const even = tilesOf({ ...FEED, run: { total_epochs: 3 }, state, epochs: speeds.slice(0, 3) });
  assert.equal(even.speed, "20");
  assert.equal(tilesOf({ ...FEED, run: { total_epochs: 3 }, state, epochs: [] }).speed, "–");
});

test("as many pictures as fit are shown: the newest first, the oldest last, evenly spread", () => {
  assert.deepEqual([columnsIn(120 + 5 * 130), columnsIn(120 + 5 * 130 - 1), columnsIn(0)], [5, 4, 2]);
  const epochs = Array.from({ length: 10 }, (_, epoch) => epoch);
  assert.deepEqual(chosenOf(epochs, 4), [9, 6, 3, 0]);
  assert.deepEqual(chosenOf(epochs, 10), epochs.toReversed());
  assert.equal(epochs[0], 0, "the given list is not changed");
  assert.deepEqual([epochsTold(20), epochsTold(30), epochsTold(1312)], ["all 20 epochs", "all 30 epochs", "30 of 1\u202f312 epochs"]);
});

test("a picture's text says whether shape and colour are right", () => {
  const picture = { prompt: "a red circle", shape: true, colour: false };
  assert.equal(altOf(picture, 20), "“a red circle” as drawn at epoch 20; shape right; colour wrong");
  assert.equal(marksOf(picture), "✓ shape  ✗ colour");
  assert.equal(altOf({ ...picture, shape: null, colour: null }, 20), "“a red circle” as drawn at epoch 20");
  assert.equal(marksOf({ ...picture, shape: null, colour: null }), "");
});

test("a volunteer's cells show its speed, or when it left", () => {
  const texts = (more, feed = FEED) => volunteerTexts({ samples: 1000, share: 0.126, seconds: 3725, active: true, samples_per_second: 50, ...more }, feed);
  assert.deepEqual(texts({}), ["1\u202f000", "13 %", "1 h 2 min", "50 samples/s"]);
  assert.deepEqual([texts({ samples_per_second: null })[3], texts({ share: null })[1]], ["active", "–"]);
  assert.deepEqual([0.00097, 0.0062, 0.0151, 0].map((share) => texts({ share })[1]), ["0.1 %", "0.6 %", "2 %", "0 %"]);
  const gone = { active: false, last_seen: 940 };
  assert.equal(texts(gone)[3], "gone 60 s ago");
  const over = { ...FEED, state: { status: "finished" }, epochs: [930, 940, 950].map((time, place) => ({ epoch: place + 1, time })) };
  const until = (last_seen) => texts({ active: false, last_seen }, over)[3];
  assert.deepEqual([until(940), until(950), until(929)], ["until epoch 2", "to the end", "before the first epoch"]);
});

test("volunteers have places by samples once they have computed for ten minutes", () => {
  const volunteers = [{ seconds: 700 }, { seconds: 599 }, { seconds: 600 }];
  assert.deepEqual(placesOf({ volunteers, least_seconds: 600 }), ["1", "–", "2"]);
  assert.deepEqual(placesOf({ volunteers }), ["1", "2", "3"]);
  const told = (total, contributors) => contributorsText({ total, contributors, least_seconds: 600 });
  assert.equal(told(40, 12), "Of 40 volunteers, 12 have computed for 10 min, and so have places.");
  assert.equal(told(40, 1), "Of 40 volunteers, 1 has computed for 10 min, and so has a place.");
  assert.equal(contributorsText({ total: 3 }), "");
});

test("a volunteer's page is that of the run that this page shows", () => {
  const id = "0123456789abcdef";
  assert.match(pageOf(id, undefined), /\/volunteer\/\?id=0123456789abcdef$/);
  assert.match(pageOf(id, { key: "https://run.example" }), /\?run=https%3A%2F%2Frun\.example&id=/);
  assert.deepEqual([idIn(pageOf(id, null)), idIn(pageOf("../x", null)), idIn("https://a.example/")], [id, "", ""]);
});

test("a volunteer's page says when it was there, its place, and why it missed epochs", () => {
  const volunteer = { active: true, first_seen: 0, last_seen: 0, machines: 2, title: "Shapes", samples: 1000, share: 0.5, seconds: 61, periods: [{ hours: 24, rank: 1 }, { hours: null, rank: 3 }] };
  assert.equal(sentenceOf(volunteer), "Training now; takes part in Shapes since 1 January 1970, with 2 machines in all.");
  assert.match(sentenceOf({ ...volunteer, active: false, machines: 1 }), /^Not there now; last seen on 1 January 1970 at .*\. First seen on 1 January 1970\.$/);
  assert.deepEqual(volunteerTiles(volunteer), { samples: "1\u202f000", share: "50 %", time: "61 s", rank: "3" });
  assert.equal(volunteerTiles({ ...volunteer, periods: [] }).rank, "–");
  assert.deepEqual(missedTexts({ late: 1, paused: 20 }), [["paused", "20"], ["late", "1"]]);
});

test("the newest events come first, and only the last checkpoint is listed", () => {
  const events = [{ kind: "checkpoint", n: 1 }, { kind: "joined", n: 2 }, { kind: "checkpoint", n: 3 }, { kind: "left", n: 4 }];
  assert.deepEqual(eventsToTell(events).map(({ n }) => n), [4, 3, 2]);
  assert.equal(eventsToTell(Array.from({ length: 300 }, () => ({ kind: "joined" }))).length, 100);
});

test("the home page's curve fills its picture", () => {
  const { loss, people, label } = curvePaths([[1, 5], [2, 4], [3, 3]], [[0, 9], [1, 1], [3, 2]]);
  assert.equal(loss, "4.0,4.0 150.0,40.0 296.0,76.0");
  assert.match(people, /^M4,100L4\.0,98\.7L296\.0,97\.3L296,100Z$/);
  assert.equal(label, "Loss from 5 at epoch 1 to 3 at epoch 3; below, how many volunteers trained: at most 9");
});
