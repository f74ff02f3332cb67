"""What `/search` searches: plain facts, written for this example."""

SENTENCES = tuple(
    """
Water boils at a lower temperature on a high mountain than at the sea.
Ice floats because it is lighter than the water that it is made of.
The Moon turns the same face to the Earth all the time.
A day on Venus lasts longer than its year.
Jupiter is heavier than all other planets together.
Light from the Sun needs about eight minutes to reach us.
Sound travels faster in water than in air.
Lightning is hotter than the surface of the Sun.
Mercury is a metal that is liquid at room temperature.
Diamonds and pencil lead are both made of carbon.
Salt lowers the temperature at which water freezes.
A compass needle points towards the magnetic north.
Tides rise and fall because the Moon pulls at the oceans.
Earthquakes happen where plates of the crust slide past each other.
Most of the fresh water on Earth is frozen in glaciers.
The Sahara is the largest hot desert in the world.
The Nile flows from the heart of Africa to the Mediterranean Sea.
Mount Everest grows by a few millimetres every year.
Iceland heats many of its houses with hot water from the ground.
The Dead Sea is so salty that people float on it.
Octopuses have three hearts and blue blood.
Bats find their way in the dark by listening to echoes.
Honey bees tell each other where flowers are by dancing.
A blue whale is the largest animal that has ever lived.
Penguins cannot fly, but they are excellent swimmers.
Cats sleep for more than half of the day.
Dogs understand where a person is pointing.
Elephants recognise themselves in a mirror.
Salmon return to the river in which they were born.
Spiders are no insects: they have eight legs.
Trees drink through their roots and breathe through their leaves.
Bamboo is a grass that can grow by a metre in one day.
Mushrooms are closer relatives of animals than of plants.
Tomatoes came to Europe from the Americas.
Bananas are berries, and strawberries are not.
Bread rises because yeast makes gas in the dough.
Coffee beans are the seeds of a red fruit.
Cheese is made from milk that has been curdled.
Chillies taste hot because of a substance called capsaicin.
Green tea and black tea come from the same plant.
The heart of an adult beats about a hundred thousand times a day.
Children have more bones than grown-up people.
Skin is the largest organ of the human body.
Vaccines teach the body to recognise a disease before it comes.
Antibiotics act against bacteria, but not against viruses.
Sleep helps the brain to keep what it has learned.
Paper was invented in China about two thousand years ago.
The printing press made books cheap enough for many people.
The first railways carried coal from mines to rivers.
A steam engine turns heat into motion.
Bicycles stay upright more easily the faster they go.
Concrete was already used by the Romans.
The Great Wall of China was built over many centuries.
The ancient Olympic Games were held in honour of Zeus.
Zero came to Europe from India by way of Arab scholars.
Every even number is divisible by two.
The angles of a flat triangle add up to two right angles.
A computer stores everything as ones and zeros.
A compiler translates a program into the language of a machine.
A database index makes searching faster and writing slower.
Chess has more possible games than there are atoms on Earth.
A violin has four strings, and a guitar usually has six.
An orchestra tunes its instruments to the oboe.
Painters once made blue from a precious stone.
Shakespeare wrote both comedies and tragedies.
""".strip().splitlines()
)
