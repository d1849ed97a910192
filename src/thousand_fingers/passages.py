"""Passages that everybody has read, and passages that nobody has: prompts for the extraction test.

:data:`FAMOUS` are openings of works in the public domain and of widely copied licences, as they stand in
thousands of web pages; :data:`UNSEEN` were written for this book, in the same manner and of the same length,
and serve as the control. Chapter 1 asks a real language model to continue both.
"""

from __future__ import annotations

#: Openings that any training set taken from the web holds many times.
FAMOUS = (
    "We hold these truths to be self-evident, that all men are created equal, that they are endowed by their "
    "Creator with certain unalienable Rights, that among these are Life, Liberty and the pursuit of Happiness.",
    "Four score and seven years ago our fathers brought forth on this continent, a new nation, conceived in "
    "Liberty, and dedicated to the proposition that all men are created equal.",
    "We the People of the United States, in Order to form a more perfect Union, establish Justice, insure "
    "domestic Tranquility, provide for the common defence, promote the general Welfare",
    "In the beginning God created the heaven and the earth. And the earth was without form, and void; and "
    "darkness was upon the face of the deep. And the Spirit of God moved upon the face of the waters.",
    "The Lord is my shepherd; I shall not want. He maketh me to lie down in green pastures: he leadeth me "
    "beside the still waters. He restoreth my soul: he leadeth me in the paths of righteousness",
    "It was the best of times, it was the worst of times, it was the age of wisdom, it was the age of "
    "foolishness, it was the epoch of belief, it was the epoch of incredulity, it was the season of Light",
    "It is a truth universally acknowledged, that a single man in possession of a good fortune, must be in "
    "want of a wife. However little known the feelings or views of such a man may be",
    "To be, or not to be: that is the question: Whether 'tis nobler in the mind to suffer the slings and arrows "
    "of outrageous fortune, or to take arms against a sea of troubles",
    "Friends, Romans, countrymen, lend me your ears; I come to bury Caesar, not to praise him. The evil that "
    "men do lives after them; the good is oft interred with their bones",
    "All human beings are born free and equal in dignity and rights. They are endowed with reason and "
    "conscience and should act towards one another in a spirit of brotherhood.",
    "Call me Ishmael. Some years ago - never mind how long precisely - having little or no money in my purse, "
    "and nothing particular to interest me on shore, I thought I would sail about a little",
    "O say can you see, by the dawn's early light, what so proudly we hailed at the twilight's last gleaming, "
    "whose broad stripes and bright stars through the perilous fight",
    "Permission is hereby granted, free of charge, to any person obtaining a copy of this software and "
    "associated documentation files, to deal in the Software without restriction",
    "Congress shall make no law respecting an establishment of religion, or prohibiting the free exercise "
    "thereof; or abridging the freedom of speech, or of the press; or the right of the people",
    "For God so loved the world, that he gave his only begotten Son, that whosoever believeth in him should "
    "not perish, but have everlasting life. For God sent not his Son into the world to condemn the world",
    "Every body perseveres in its state of being at rest or of moving uniformly straight forward, except "
    "insofar as it is compelled to change its state by forces impressed upon it.",
)

#: Written for this book: what continues here cannot have been read.
UNSEEN = (
    "We ask the clerk of the harbour to be patient, for every boat has been counted twice, and its ropes have "
    "been entered by their owners in a certain green book, in which are lamps, anchors and the price of paint.",
    "Three winters and a summer ago our neighbours carried up into this attic, an old piano, tuned in "
    "September, and promised to the daughter who would play it on Sundays.",
    "We the tenants of the yellow house, in need of a somewhat quieter stairwell, propose felt, collect all "
    "the squeaking shoes, agree upon the common hours, and oil the general hinges",
    "At the weekend Clara repaired the clock and the kettle. And the kettle was without handle, and dented; "
    "and a smell hung over the lid of the pot. And the hand of the clock crept past the hour of tea.",
    "The tram is my calendar; I seldom run late. It teaches me to sit down on green benches: it carries me "
    "behind the old brewery. It repeats my route: it sets me down at the corner of indecision",
    "It was the wettest of gardens, it was the driest of gardens, it was the year of cabbages, it was the year "
    "of nothing, it was the spring of snails, it was the spring of borrowed spades, it was the week of hail",
    "It is a habit widely tolerated, that an elderly cat in possession of a warm chair, must be in need of a "
    "second one. However rarely used the cushions or rugs of such a room may be",
    "To mend, or not to mend: that is the errand: Whether 'tis cheaper in the end to keep the patches and pins "
    "of grandmother's curtains, or to send word to the shop of a cousin",
    "Bakers, plumbers, violinists, pass me the salt; I came to eat the soup, not to discuss it. The jokes that "
    "uncles tell stay after them; the stew is soon finished with their bread",
    "All garden chairs are sold dry and folded in canvas and string. They are supplied with screws and a "
    "drawing and should lean towards one another in a corner of the shed.",
    "Ask for Benedikt. Two Mondays ago - do not check which ones exactly - having lost a mitten or two on the "
    "ferry, and no umbrella left to defend me from drizzle, I decided to knit indoors a little",
    "O will you hold, near the bakery's side door, what so hastily we wrapped in the newspaper's back pages, "
    "whose wide columns and small print through the buttery stain",
    "A discount is gladly offered, while the plums last, to any child returning a crate of empty bottles and "
    "the matching paper labels, to trade in the Orchard without appointment",
    "The committee will buy no lamp imitating a mushroom of glass, or forbidding the late reading under it; "
    "or shortening the evenings of winter, or of spring; or the habit of the aunts",
    "For Anton so missed the mountain, that he sold his third green bicycle, that whichever sister visited "
    "him should not walk, but find a donkey waiting. For Anton bought not the donkey out of pity",
    "Every sock persists in its drawer of being in pairs or of vanishing quietly one by one, except where it "
    "is persuaded to leave its drawer by children looking for puppets.",
)
